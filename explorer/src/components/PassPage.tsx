// One pass: what it is for, what it did, match by match, and what it nearly did.
import { useMemo } from "preact/hooks";
import { linkTo, useApp, visit } from "../app";
import type { Run } from "../book";
import { diffRows } from "../diff";
import { count, signed, stageTitle, time } from "../format";
import type { Replay } from "../replay";
import type { GraphNode } from "../schema";
import type { View } from "../route";
import { DiffView } from "./DiffView";
import { Listing } from "./Listing";
import { MatchBar } from "./MatchBar";
import { Misses } from "./Misses";
import { Picture } from "./Picture";
import { RuleSource } from "./RuleSource";
import { Tabs } from "./Tabs";

export function PassPage({ run }: { run: Run }) {
  const app = useApp();
  const { pass, stage, index } = run;
  const { match, view } = app.route;
  const [before, after, whole] = useMemo(() => sides(app.book.replay(stage), index, match), [app.book, stage, index, match]);
  const rows = useMemo(() => diffRows(before, after), [before, after]);
  const views = viewsOf(run);
  const shown = views.some(([name]) => name === view) ? view : pass.rejects.length && !pass.delta ? "misses" : views[0]?.[0];
  return (
    <article class="page fills">
      <PassHeader run={run} />
      {pass.matches.length > 0 && <MatchBar run={run} whole={whole} />}
      <Tabs label="Views of this pass" tabs={views} shown={shown} show={(name) => visit(app, { ...app.route, view: name })}>
        {shown === "changes" && <DiffView rows={rows} />}
        {shown === "picture" && <Picture key={match} rows={rows} />}
        {shown === "before" && <Listing nodes={before} label="The graph before" />}
        {shown === "after" && <Listing nodes={after} label="The graph after" />}
        {shown === "misses" && (
          <div class="misses">
            <Misses run={run} />
          </div>
        )}
      </Tabs>
    </article>
  );
}

function viewsOf({ pass, stage }: Run): [View, string][] {
  const views: [View, string][] = [];
  if (pass.delta) views.push(["changes", "Changes"], ["picture", "Picture"], ["before", "Before"], ["after", "After"]);
  else if (stage.start.length) views.push(["before", "Graph"]);
  if (pass.rejects.length) views.push(["misses", `Nearest misses (${pass.rejects.length})`]);
  return views;
}

/** The graph before and after the match, or the whole pass where the match alone is not known. */
function sides(replay: Replay, index: number, match: number | null): [GraphNode[], GraphNode[], boolean] {
  const around = match === null ? null : replay.aroundMatch(index, match);
  return around ? [...around, false] : [replay.before(index), replay.after(index), true];
}

function PassHeader({ run: { pass, graph, stage } }: { run: Run }) {
  const app = useApp();
  const difference = pass.nodes_after - pass.nodes_before;
  return (
    <header class="page-head">
      <p class="crumbs">
        {app.book.report.graphs.length > 1 && `Graph ${graph.number} · `}
        <a href={linkTo(app, { ...app.route, page: "stage", run: null, match: null })}>{stageTitle(stage.name, stage.role)}</a>
      </p>
      <h1>
        {pass.name} <span class={`badge big ${pass.status}`}>{pass.status}</span>
      </h1>
      <p class="purpose">{pass.purpose}</p>
      <p class="facts">
        {pass.reason && <span class="reason">{pass.status === "failed" ? `Undone: ${pass.reason}` : pass.reason}</span>}
        {pass.matches.length > 0 && <span>{count(pass.matches.length, "match", "matches")}</span>}
        {pass.status === "changed" && <span>{`${pass.nodes_before} → ${pass.nodes_after} nodes (${signed(difference)})`}</span>}
        {pass.status !== "skipped" && <span>{time(pass.seconds)}</span>}
        {pass.verified && <span class={pass.verified.ok ? "good" : "bad"}>{`${pass.verified.ok ? "✓ verified" : "✗ verification failed"}: ${pass.verified.text}`}</span>}
      </p>
      {pass.place && <p class="place-reason">{`Why here: ${pass.place}`}</p>}
      {pass.rule !== null && <RuleSource index={pass.rule} title="Source of the pass" />}
    </header>
  );
}
