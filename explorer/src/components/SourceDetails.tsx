import { useMemo } from "preact/hooks";
import { useApp } from "../app";
import type { GraphNode } from "../schema";
import { Fact, Kernels, Nodes } from "./facts";

/** A line of the user's program: what it was captured as, and what runs for it. */
export function SourceDetails({ index }: { index: number }) {
  const { book } = useApp();
  const line = book.report.sources[index];
  if (!line) return <p class="quiet">{`This report has no line ${index}.`}</p>;
  return (
    <div class="details">
      <p class="crumbs" title={line.file}>{`${line.file}:${line.line}`}</p>
      <h2>Line of your program</h2>
      <pre class="one-line">{line.code.trim()}</pre>
      <Traces owns={(node, inherited) => (node.source ?? inherited("source")) === index} />
    </div>
  );
}

type Owns = (node: GraphNode, inherited: (field: "source" | "module") => number | null) => boolean;

/** What was captured for something of the user's, and what runs for it in the end. */
export function Traces({ owns }: { owns: Owns }) {
  const { book, provenance, route } = useApp();
  const { graph } = route;
  const pick = (nodes: GraphNode[]) => nodes.filter((node) => node.op !== "output" && node.op !== "placeholder" && owns(node, (field) => provenance[field](node.id)));
  const captured = useMemo(() => pick(book.firstStage(graph)?.start ?? []), [graph, owns]);
  const ends = book.finalStages(graph).map((stage) => ({ stage, nodes: pick(book.replay(stage).end()) }));
  const kernels = [...new Set(ends.flatMap(({ nodes }) => nodes.flatMap((node) => provenance.kernels(node.id))))];
  return (
    <section>
      <h3>What became of it</h3>
      <dl class="facts-list">
        <Fact name="Captured">{captured.length ? <Nodes nodes={captured} /> : null}</Fact>
        {ends.map(({ stage, nodes }) => (
          <Fact key={stage.key} name={stage.role === "backward" ? "Backward" : "Forward"}>
            {nodes.length ? <Nodes nodes={nodes} /> : "nothing"}
          </Fact>
        ))}
        <Fact name="Kernels">{kernels.length ? <Kernels kernels={kernels} /> : null}</Fact>
      </dl>
    </section>
  );
}
