// What is kept for the backward, what it computes again, and what memory that takes.
import { useApp } from "../app";
import { bytes, count, time } from "../format";
import type { Graph, Value } from "../schema";
import { CurveChart } from "./CurveChart";
import { ModuleLink, NodeLink } from "./links";
import { TimelineChart } from "./TimelineChart";

export function PartitionPage({ graph }: { graph: Graph }) {
  const { partition } = graph;
  if (!partition) {
    return (
      <article class="page">
        <h1>Saved for backward</h1>
        <p>No gradients are computed in this graph, so nothing is saved.</p>
      </article>
    );
  }
  const values = partition.saved.filter((value) => value.bytes > 0);
  const inputs = partition.saved.filter((value) => value.bytes === 0);
  const total = (list: Value[]) => list.reduce((sum, value) => sum + value.bytes, 0);
  const budget = typeof partition.budget === "number" ? `memory budget ${partition.budget}` : "memory budget by module";
  return (
    <article class="page">
      <header class="page-head">
        <h1>Saved for backward</h1>
        <p class="purpose">
          {`The forward saves ${count(values.length, "value")} of ${bytes(total(values))} for the backward` +
            `${inputs.length ? `, and ${count(inputs.length, "input")} that are alive in any case` : ""}. ` +
            `The backward recomputes ${count(partition.again.length, "value")}.`}
        </p>
        <p class="facts">
          <span>{budget}</span>
          {partition.peak !== null && <span>{`at most ${bytes(partition.peak)} held at once, by estimate`}</span>}
        </p>
      </header>
      <div class="charts">
        {partition.timeline.length > 1 && <TimelineChart timeline={partition.timeline} />}
        {partition.curve && <CurveChart points={partition.curve.points} chosen={partition.curve.chosen} />}
      </div>
      <Values title="Saved" note="The cost of saving each value, beside the cost of recomputing it." values={values} cost="Saving" instead="Recomputing" />
      <Values title="Recomputed" note="The cost of recomputing each value, beside the cost of saving it." values={partition.again} cost="Recomputing" instead="Saving" />
      {inputs.length > 0 && (
        <details class="more">
          <summary>{`${count(inputs.length, "input")} kept`}</summary>
          <p class="node-links">
            {inputs.map((value) => (
              <ValueName key={value.name} value={value} />
            ))}
          </p>
        </details>
      )}
      {partition.others.length > 0 && (
        <details class="more">
          <summary>{`${count(partition.others.length, "other value")}, neither saved nor recomputed`}</summary>
          <Values values={partition.others} cost="Recomputing" instead="Saving" />
        </details>
      )}
    </article>
  );
}

interface Table {
  title?: string;
  note?: string;
  values: Value[];
  cost: string;
  instead: string;
}

function Values({ title, note, values, cost, instead }: Table) {
  const { provenance } = useApp();
  if (!values.length) return null;
  const sorted = values.toSorted((a, b) => b.bytes - a.bytes);
  const largest = Math.max(1, sorted[0]!.bytes);
  return (
    <section>
      {title && <h2>{title}</h2>}
      {note && <p class="quiet">{note}</p>}
      <table class="values">
        <thead>
          <tr>
            <th>Value</th>
            <th>Module</th>
            <th colSpan={2}>Memory</th>
            <th class="number">{cost}</th>
            <th class="number">{instead}</th>
            <th>Why</th>
          </tr>
        </thead>
        <tbody>
          {sorted.map((value) => {
            const module = value.node === null ? null : provenance.module(value.node);
            return (
              <tr key={value.name}>
                <td>
                  <ValueName value={value} />
                </td>
                <td>{module !== null && <ModuleLink index={module} />}</td>
                <td class="number">{bytes(value.bytes)}</td>
                <td class="bar-cell">
                  <span class="bar" style={{ "--part": value.bytes / largest }} />
                </td>
                <td class="number">{time(value.seconds)}</td>
                <td class="number">{value.instead === null ? "no choice" : time(value.instead)}</td>
                <td>{value.ahead ? `${value.reason}; at the start of the backward` : value.reason}</td>
              </tr>
            );
          })}
        </tbody>
      </table>
    </section>
  );
}

function ValueName({ value }: { value: Value }) {
  const { book } = useApp();
  const node = value.node === null ? undefined : book.nodes.get(value.node);
  return node ? <NodeLink node={node}>{value.name}</NodeLink> : <code>{value.name}</code>;
}
