// A stage in the list on the left, with its passes.
import { useEffect } from "preact/hooks";
import { elsewhere, linkTo, useApp, type App } from "../app";
import type { Run } from "../book";
import { count, signed, stageTitle, time } from "../format";
import type { Route } from "../route";
import type { Graph, Stage } from "../schema";

export function StageEntry({ graph, stage }: { graph: Graph; stage: Stage }) {
  const app = useApp();
  const runs = app.book.runsOf(stage);
  const shown = app.changedOnly ? runs.filter((run) => run.pass.status === "changed" || run.pass.status === "failed" || run === app.route.run) : runs;
  const { route } = app;
  const target = targetOf(app, graph, stage);
  const current = route.page === "stage" ? route.stage === stage : stage.name === "partition" && route.page === "partition" && route.graph === graph;
  const quiet = runs.length - shown.length;
  return (
    <section class="stage">
      <h3>
        <a href={linkTo(app, target)} aria-current={current ? "page" : undefined}>
          {stageTitle(stage.name, stage.role)}
        </a>
        <span class="aside">{stage.failure ? "failed" : time(stage.seconds)}</span>
      </h3>
      {shown.length > 0 && (
        <ul>
          {shown.map((run) => (
            <PassEntry key={run.index} run={run} />
          ))}
        </ul>
      )}
      {quiet > 0 && <p class="quiet">{`${count(quiet, shown.length ? "other pass" : "pass", shown.length ? "other passes" : "passes")}, no change`}</p>}
    </section>
  );
}

function PassEntry({ run }: { run: Run }) {
  const app = useApp();
  const { pass, graph, stage } = run;
  const current = app.route.run === run;
  const difference = pass.nodes_after - pass.nodes_before;
  useEffect(() => {
    if (current) document.querySelector(".sidebar [aria-current=page]")?.scrollIntoView({ block: "nearest" });
  }, [current]);
  return (
    <li>
      <a
        class={`pass ${pass.status}`}
        href={linkTo(app, elsewhere(app.route, { page: "pass", graph, stage, run }))}
        aria-current={current ? "page" : undefined}
        title={`${pass.name}: ${pass.reason ?? pass.purpose}`}
      >
        <span class="dot" aria-hidden="true" />
        <span class="name">{pass.name}</span>
        {pass.verified && <Verified ok={pass.verified.ok} text={pass.verified.text} />}
        {pass.status === "changed" ? (
          <span class={`delta ${difference < 0 ? "fewer" : difference > 0 ? "more" : "equal"}`} title={`${pass.nodes_before} → ${pass.nodes_after} nodes`}>
            <span class="hidden">changed, nodes </span>
            {signed(difference)}
          </span>
        ) : (
          <span class="badge">{pass.status === "unchanged" ? "" : pass.status}</span>
        )}
        <span class="time">{pass.status === "skipped" ? "" : time(pass.seconds)}</span>
      </a>
    </li>
  );
}

function Verified({ ok, text }: { ok: boolean; text: string }) {
  return (
    <span class={ok ? "verified ok" : "verified wrong"} title={text}>
      <span aria-hidden="true">{ok ? "✓" : "✗"}</span>
      <span class="hidden">{ok ? "verified" : "verification failed"}</span>
    </span>
  );
}

/** Partition and engine have pages of their own. */
export function targetOf({ route }: App, graph: Graph, stage: Stage): Route {
  if (stage.name === "partition" && graph.partition) return elsewhere(route, { page: "partition", graph });
  if (stage.name === "engine" && graph.kernels.length) return elsewhere(route, { page: "kernels", graph });
  return elsewhere(route, { page: "stage", graph, stage });
}
