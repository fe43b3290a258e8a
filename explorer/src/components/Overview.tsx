// What happened to the model, for somebody who has never seen this project.
import { Fragment } from "preact";
import { useMemo, useState } from "preact/hooks";
import { beside, elsewhere, linkTo, useApp } from "../app";
import { fatesOf, type Fate } from "../fates";
import { bytes, count, stageTitle, time } from "../format";
import type { Graph, Stage, Value } from "../schema";
import { NodeLink, PassLink } from "./links";

export function Overview({ graph }: { graph: Graph }) {
  const { book, route } = useApp();
  const { report } = book;
  const warnings = report.warnings.filter((warning) => warning.graph === null || warning.graph === graph.number);
  return (
    <article class="page">
      <header class="page-head">
        <h1>{report.graphs.length > 1 ? `Graph ${graph.number}: ${graph.description}` : `What happened to ${graph.description}`}</h1>
        <p class="facts">
          {graph.source && <span>{`starts at ${graph.source.replace(/^\S*\//, "")}`}</span>}
          <span>{`compiled and run in ${time(report.seconds)}`}</span>
          <span>{`eductor ${report.eductor}, torch ${report.torch}`}</span>
        </p>
      </header>
      {route.lost !== null && (
        <p class="warning" role="alert">
          {`This report has nothing at ${route.lost}.`}
        </p>
      )}
      {warnings.map(({ text }) => (
        <p key={text} class="warning" role="note">
          {text}
        </p>
      ))}
      <div class="cards">
        <InShort graph={graph} />
        <SavedCard graph={graph} />
        <LongestCard graph={graph} />
      </div>
      <Flow graph={graph} />
      <Modules graph={graph} />
    </article>
  );
}

function InShort({ graph }: { graph: Graph }) {
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

function SavedCard({ graph }: { graph: Graph }) {
  const app = useApp();
  const { partition } = graph;
  if (!partition) {
    return (
      <section class="card">
        <h2>Saved for backward</h2>
        <p class="figure">nothing</p>
        <p>No gradients are computed, so that nothing is kept.</p>
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
        {`${inputs ? `${count(inputs, "input")} kept, too; ` : ""}${count(again, "value")} computed again instead. `}
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

function LongestCard({ graph }: { graph: Graph }) {
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
            <PassLink run={run}>{run.pass.name}</PassLink>
            <span class="bar" style={{ "--part": run.pass.seconds / longest.pass.seconds }} />
            <span class="number">{time(run.pass.seconds)}</span>
          </li>
        ))}
      </ul>
      <p>{`All ${runs.length} passes together: ${time(total)}. The longest stage: ${slowest[0]!.name}, ${time(secondsOf(slowest))}.`}</p>
    </section>
  );
}

/** The stages in their order, each with what it made of the graph. */
function Flow({ graph }: { graph: Graph }) {
  const app = useApp();
  const target = (stage: Stage) => {
    if (stage.name === "partition" && graph.partition) return elsewhere(app.route, { page: "partition" });
    if (stage.name === "engine" && graph.kernels.length) return elsewhere(app.route, { page: "kernels" });
    return elsewhere(app.route, { page: "stage", stage });
  };
  return (
    <section aria-labelledby="flow">
      <h2 id="flow">From your program to what runs</h2>
      <ol class="flow">
        {byName(graph.stages).map((stages) => (
          <li key={stages[0]!.key}>
            <span class="name">
              <b>{stageTitle(stages[0]!.name, "")}</b>
              <span class="aside">{time(secondsOf(stages))}</span>
            </span>
            {stages.map((stage) => (
              <a key={stage.key} class={stage.failure ? "bad" : undefined} href={linkTo(app, target(stage))}>
                {stages.length > 1 && <span class="aside">{stage.role}</span>} {told(graph, stage)}
              </a>
            ))}
            <ChangedIt stages={stages} />
          </li>
        ))}
      </ol>
    </section>
  );
}

/** Forward and backward of a stage stand together. */
function byName(stages: Stage[]): Stage[][] {
  const groups = new Map<string, Stage[]>();
  for (const stage of stages) groups.set(stage.name, [...(groups.get(stage.name) ?? []), stage]);
  return [...groups.values()];
}

function ChangedIt({ stages }: { stages: Stage[] }) {
  const changed = stages.flatMap((stage) => stage.passes).filter((pass) => pass.status === "changed").length;
  return changed ? <span class="aside">{`${count(changed, "pass", "passes")} changed it`}</span> : null;
}

function secondsOf(stages: Stage[]): number {
  return stages.reduce((total, stage) => total + stage.seconds, 0);
}

function parted({ facts }: Stage): string {
  const [forward, backward] = [facts["forward_nodes"], facts["backward_nodes"]];
  return typeof backward === "number" ? `${forward} forward, ${backward} backward` : "forward only";
}

function told(graph: Graph, stage: Stage): string {
  if (stage.failure) return "failed";
  if (stage.facts["left_out"]) return "left out";
  if (stage.name === "autograd") return typeof stage.facts["gradients"] === "number" ? count(stage.facts["gradients"], "gradient") : "traced";
  if (stage.name === "partition") return parted(stage);
  if (stage.name === "engine") {
    const kernels = graph.kernels.filter((kernel) => kernel.role === stage.role && kernel.language !== "aten").length;
    return kernels ? count(kernels, "kernel") : String(stage.facts["engine"] ?? "");
  }
  const [start, end] = [stage.start.length, stage.result ?? stage.start.length];
  const nodes = stage.role === "forward" || stage.role === "backward" ? "" : " nodes";
  return start === end ? `${start}${nodes}` : `${start} → ${end}${nodes}`;
}

function Modules({ graph }: { graph: Graph }) {
  const { book, provenance } = useApp();
  const fates = useMemo(() => fatesOf(book, provenance, graph), [book, provenance, graph]);
  const kinds = useMemo(() => kindsOf(fates), [fates]);
  const [kind, setKind] = useState<string | null>(null);
  if (!fates.length) return null;
  const trained = book.finalStages(graph).some((stage) => stage.role === "backward");
  const shown = kinds.filter(([name]) => kind === null || name === kind);
  return (
    <section aria-labelledby="modules">
      <h2 id="modules">What happened to each module</h2>
      <div class="chips" role="group" aria-label="Kinds of modules">
        <button type="button" class="chip" aria-pressed={kind === null} onClick={() => setKind(null)}>
          All
        </button>
        {kinds.map(([name, total]) => (
          <button key={name} type="button" class="chip" aria-pressed={kind === name} onClick={() => setKind(name)}>
            {name} <b>{total}</b>
          </button>
        ))}
      </div>
      <table class="fates">
        <thead>
          <tr>
            <th>Module</th>
            <th>Captured as</th>
            <th>Forward runs</th>
            {trained && <th>Backward runs</th>}
            <th class="changed-by">Changed by</th>
          </tr>
        </thead>
        {shown.map(([name, total]) => (
          <tbody key={name}>
            <tr class="kind">
              <th colSpan={trained ? 5 : 4} scope="rowgroup">
                {name} <span class="aside">{total > 1 ? `${total} modules` : ""}</span>
              </th>
            </tr>
            {fates.filter((fate) => fate.kind === name).map((fate) => (
              <FateRow key={fate.modules[0]} fate={fate} trained={trained} />
            ))}
          </tbody>
        ))}
      </table>
    </section>
  );
}

function kindsOf(fates: Fate[]): [string, number][] {
  const totals = new Map<string, number>();
  for (const fate of fates) totals.set(fate.kind, (totals.get(fate.kind) ?? 0) + fate.modules.length);
  return [...totals].sort((a, b) => b[1] - a[1]);
}

function FateRow({ fate, trained }: { fate: Fate; trained: boolean }) {
  const app = useApp();
  const names = [...new Map(fate.passes.map((run) => [run.pass.address, run])).values()];
  return (
    <tr>
      <td>
        <a class="code-link" href={linkTo(app, beside(app.route, { module: fate.modules[0]! }))} aria-current={app.route.module === fate.modules[0] || undefined}>
          <Breakable text={fate.label || fate.kind} />
        </a>
        {fate.modules.length > 1 && <span class="aside">{` ×${fate.modules.length}, all alike`}</span>}
      </td>
      <td>
        <Operators names={fate.captured} />
      </td>
      <td>
        <Operators names={fate.forward} />
      </td>
      {trained && (
        <td>
          <Operators names={fate.backward} />
        </td>
      )}
      <td class="touched">
        {names.length ? names.map((run) => <PassLink key={run.pass.address} run={run}>
                <Breakable text={run.pass.name} />
              </PassLink>) : <span class="aside">no pass</span>}
      </td>
    </tr>
  );
}

const FEW = 5;

function Operators({ names }: { names: string[] }) {
  if (!names.length) return <span class="aside">nothing</span>;
  const more = names.length > FEW ? `, and ${names.length - FEW} more` : "";
  return (
    <code title={names.join(", ")}>
      <Breakable text={names.slice(0, FEW).join(", ") + more} />
    </code>
  );
}

/** A long name may go on in the next line behind an underscore or a dot. */
function Breakable({ text }: { text: string }) {
  const parts = text.split(/(?<=[_.])/);
  return (
    <>
      {parts.map((part, index) => (
        <Fragment key={index}>
          {part}
          <wbr />
        </Fragment>
      ))}
    </>
  );
}
