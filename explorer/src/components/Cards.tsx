// The first answers: what changed, what is saved, what took longest.
import { elsewhere, linkTo, useApp } from "../app";
import { bytes, count, time } from "../format";
import type { Graph, Value } from "../schema";
import { byName, secondsOf } from "../stages";
import { NodeLink, PassLink } from "./links";

export function InShort({ graph }: { graph: Graph }) {
  const { book } = useApp();
  const runs = book.runs.filter((run) => run.graph === graph);
  const changed = runs.filter((run) => run.pass.status === "changed");
  const matches = changed.reduce((total, run) => total + run.pass.matches.length, 0);
  const checked = runs.flatMap(({ pass }) => pass.verified ?? []);
  const wrong = checked.filter((each) => !each.ok).length;
  const first = book.firstStage(graph);
  const ends = book.finalStages(graph).map((stage) => {
    const kernels = graph.kernels.filter((kernel) => kernel.role === stage.role && kernel.language !== "aten").length;
    const nodes = count(busy(book.replay(stage).end()), "operation");
    return `${stage.role === "backward" ? "backward" : "forward"} ${nodes}${kernels ? ` in ${count(kernels, "kernel")}` : ""}`;
  });
  return (
    <section class="card">
      <h2>In short</h2>
      <p class="figure">
        {changed.length} <small>{`of ${count(runs.length, "pass", "passes")} changed something`}</small>
      </p>
      <p>{`${first ? `Captured: ${count(busy(first.start), "operation")}. ` : ""}${ends.length ? `Now: ${ends.join(", ")}. ` : ""}The passes made ${count(matches, "rewrite")}.`}</p>
      {checked.length > 0 && <p class={wrong ? "bad" : "good"}>{wrong ? `✗ ${wrong} of ${checked.length} checked passes broke their contract` : `✓ ${checked.length === 1 ? "the change was" : `all ${checked.length} changes were`} checked against the graph before`}</p>}
    </section>
  );
}

function busy(nodes: { op: string }[]): number {
  return nodes.filter((node) => node.op.startsWith("call_")).length;
}

export function SavedCard({ graph }: { graph: Graph }) {
  const app = useApp();
  const { partition } = graph;
  if (!partition) {
    return (
      <section class="card">
        <h2>Saved for backward</h2>
        <p class="figure">nothing</p>
        <p>No gradients are computed, so nothing is saved.</p>
      </section>
    );
  }
  const values = partition.saved.filter((value) => value.bytes > 0);
  const inputs = partition.saved.length - values.length;
  const size = values.reduce((total, value) => total + value.bytes, 0);
  const largest = values.toSorted((a, b) => b.bytes - a.bytes).slice(0, 3);
  const again = partition.again.filter((value) => value.bytes > 0).length;
  return (
    <section class="card">
      <h2>Saved for backward</h2>
      <p class="figure">
        {bytes(size)} <small>{`in ${count(values.length, "value")}`}</small>
      </p>
      <ul class="bars">
        {largest.map((value) => (
          <li key={value.name}>
            <ValueLink value={value} />
            <span class="bar" style={{ "--part": value.bytes / largest[0]!.bytes }} />
            <span class="number">{bytes(value.bytes)}</span>
          </li>
        ))}
      </ul>
      <p>
        {`${inputs ? `${count(inputs, "input")} kept, too; ` : ""}${count(again, "value")} recomputed instead. `}
        <a href={linkTo(app, elsewhere(app.route, { page: "partition" }))}>All, with reasons</a>
      </p>
    </section>
  );
}

/** A value is known by its module rather than by its name. */
function ValueLink({ value }: { value: Value }) {
  const { book, provenance } = useApp();
  const node = value.node === null ? undefined : book.nodes.get(value.node);
  if (!node) return <code>{value.name}</code>;
  const module = provenance.module(node.id);
  return <NodeLink node={node}>{module === null ? value.name : book.report.modules[module]!.path}</NodeLink>;
}

export function LongestCard({ graph }: { graph: Graph }) {
  const { book } = useApp();
  const runs = book.runs.filter((run) => run.graph === graph).toSorted((a, b) => b.pass.seconds - a.pass.seconds);
  const total = runs.reduce((sum, run) => sum + run.pass.seconds, 0);
  const longest = runs[0];
  const slowest = byName(graph.stages).reduce((most, stages) => (secondsOf(stages) > secondsOf(most) ? stages : most));
  if (!longest) return null;
  return (
    <section class="card">
      <h2>Longest pass</h2>
      <p class="figure">
        {longest.pass.name} <small>{time(longest.pass.seconds)}</small>
      </p>
      <ul class="bars">
        {runs.slice(0, 3).map((run) => (
          <li key={`${run.stage.key}${run.index}`}>
            <PassLink run={run} />
            <span class="bar" style={{ "--part": run.pass.seconds / longest.pass.seconds }} />
            <span class="number">{time(run.pass.seconds)}</span>
          </li>
        ))}
      </ul>
      <p>{`All ${runs.length} passes together: ${time(total)}. The longest stage: ${slowest[0]!.name}, ${time(secondsOf(slowest))}.`}</p>
    </section>
  );
}
