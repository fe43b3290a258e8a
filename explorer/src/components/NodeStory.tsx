// The story of a node: where it came from, what became of it, who changed it and who left it.
import { useApp } from "../app";
import { bytes } from "../format";
import type { Change } from "../provenance";
import type { GraphNode } from "../schema";
import { Fact, Kernels, LISTED, Nodes } from "./facts";
import { ModuleLink, PassLink, SourceLink } from "./links";

export function Origin({ node }: { node: GraphNode }) {
  const { provenance, book } = useApp();
  const source = provenance.source(node.id);
  const module = provenance.module(node.id);
  const parents = node.from.map((id) => book.nodes.get(id)).filter((each) => each !== undefined && each.id !== node.id) as GraphNode[];
  const made = provenance.changesOf(node.id).find((change) => change.what === "made");
  return (
    <section>
      <h3>Where it came from</h3>
      {source !== null && <SourceLink index={source} />}
      <dl class="facts-list">
        <Fact name="Module">{module === null ? null : <ModuleLink index={module} />}</Fact>
        <Fact name="Made by">{made ? <ChangeLink change={made} /> : (node.made?.match ?? node.made?.pass ?? null)}</Fact>
        <Fact name="Came from">{parents.length ? <Nodes nodes={parents} /> : null}</Fact>
      </dl>
      {source === null && !made && !node.made && <p class="quiet">It is an input or a result, not a line of the program.</p>}
    </section>
  );
}

export function Future({ node }: { node: GraphNode }) {
  const { provenance } = useApp();
  const finals = provenance.finals(node.id);
  const others = finals.filter((each) => each.id !== node.id);
  const removal = provenance.changesOf(node.id).find((change) => change.what === "removed");
  const replacement = provenance.replacement(node.id);
  const direct = provenance.descendants(node.id).slice(0, LISTED);
  const role = (name: "forward" | "backward") => others.filter((each) => provenance.endsIn(each.id) === name);
  const kernels = [...new Set(finals.flatMap((each) => provenance.kernels(each.id)))];
  return (
    <section>
      <h3>What became of it</h3>
      {removal && (
        <p>
          Removed by <ChangeLink change={removal} />
          {replacement && `, replaced ${replacement}`}.
        </p>
      )}
      {provenance.endsIn(node.id) && <p>It is unchanged in the graph that the engine got.</p>}
      <dl class="facts-list">
        <Fact name="Forward">{role("forward").length ? <Nodes nodes={role("forward")} /> : null}</Fact>
        <Fact name="Backward">{role("backward").length ? <Nodes nodes={role("backward")} /> : null}</Fact>
        <Fact name="Became">{!others.length && direct.length ? <Nodes nodes={direct} /> : null}</Fact>
        <Fact name="Kernels">{kernels.length ? <Kernels kernels={kernels} /> : null}</Fact>
      </dl>
      {!removal && !finals.length && !direct.length && <p class="quiet">Nothing in the final graphs comes from it.</p>}
    </section>
  );
}

export function History({ changes }: { changes: Change[] }) {
  const shown = changes.filter((change) => change.what === "changed");
  if (!shown.length) return null;
  return (
    <section>
      <h3>Changed by</h3>
      <ul class="plain">
        {shown.slice(0, LISTED).map((change, index) => (
          <li key={index}>
            <ChangeLink change={change} />
          </li>
        ))}
      </ul>
    </section>
  );
}

/** Passes that looked at the node and left it as it was. */
export function Left({ node }: { node: GraphNode }) {
  const { book } = useApp();
  const home = book.homes.get(node.id)!;
  const left = book.runsOf(home.stage).flatMap((run) => {
    const reject = run.pass.rejects.find((each) => each.nodes.includes(node.name));
    return reject ? [{ run, reason: reject.reason }] : [];
  });
  if (!left.length) return null;
  return (
    <section>
      <h3>Declined by</h3>
      <ul class="plain">
        {left.slice(0, LISTED).map(({ run, reason }) => (
          <li key={run.index}>
            <PassLink run={run}>{run.pass.name}</PassLink> <span class="aside">{reason}</span>
          </li>
        ))}
      </ul>
    </section>
  );
}

function ChangeLink({ change: { run, match } }: { change: Change }) {
  return <PassLink run={run} match={match ? run.pass.matches.indexOf(match) : null} />;
}

export function Saved({ id }: { id: number }) {
  const { book, provenance } = useApp();
  const ids = new Set([id, ...provenance.ancestors(id).map((node) => node.id)]);
  for (const { partition } of book.report.graphs) {
    const saved = partition?.saved.find((value) => value.node !== null && ids.has(value.node));
    const again = partition?.again.find((value) => value.node !== null && ids.has(value.node));
    const value = saved ?? again;
    if (value) {
      return (
        <section>
          <h3>{saved ? "Saved for backward" : "Recomputed in backward"}</h3>
          <p>{`${value.bytes ? `${bytes(value.bytes)}; ` : ""}${value.reason}.`}</p>
        </section>
      );
    }
  }
  return null;
}
