// A stage: what it did as a whole, and its graph as it began and as it ended.
import { useMemo, useState } from "preact/hooks";
import { useApp } from "../app";
import { diffRows } from "../diff";
import { count, stageTitle, time } from "../format";
import type { Stage } from "../schema";
import { DiffView } from "./DiffView";
import { Listing } from "./Listing";
import { PassLink } from "./links";
import { Misses } from "./Misses";
import { Picture } from "./Picture";
import { Tabs } from "./Tabs";

const ABOUT: Record<string, string> = {
  pre_grad: "The graph as captured from your program, before autograd.",
  autograd: "Traces the captured graph to a joint graph: forward and backward together, in ATen operators.",
  joint: "Forward and backward together, in ATen operators, before the partition.",
  partition: "Splits the joint graph into forward and backward, and chooses what is saved between them.",
  post_grad: "One of the two graphs on its own, before it is lowered.",
  lower: "Prepares a copy of the graph for the engine.",
  engine: "Compiles the graph to kernels.",
  link: "Makes the function that the caller gets: writes, aliases and autograd around the compiled graphs.",
};
type View = "changes" | "start" | "end" | "modules" | "misses";

export function StagePage({ stage }: { stage: Stage }) {
  const { book } = useApp();
  const changed = stage.passes.some((pass) => pass.delta);
  const [view, setView] = useState<View>(changed ? "changes" : "start");
  const end = book.replay(stage).end();
  const rows = useMemo(() => diffRows(stage.start, end), [stage, end]);
  const missing = book.runsOf(stage).filter((run) => run.pass.rejects.length);
  const views: [View, string][] = changed ? [["changes", "Changes"], ["start", "Start"], ["end", "End"]] : [["start", "Graph"]];
  views.push(["modules", "Modules"]);
  if (missing.length) views.push(["misses", "Nearest misses"]);
  return (
    <article class="page fills">
      <header class="page-head">
        <h1>{stageTitle(stage.name, stage.role)}</h1>
        <p class="purpose">{ABOUT[stage.name]}</p>
        <p class="facts">
          {stage.failure && <span class="bad">{stage.failure}</span>}
          {stage.start.length > 0 && <span>{changed ? `${stage.start.length} → ${count(end.length, "node")}` : count(stage.start.length, "node")}</span>}
          {stage.passes.length > 0 && <span>{count(stage.passes.length, "pass", "passes")}</span>}
          <span>{time(stage.seconds)}</span>
          {typeof stage.facts["engine"] === "string" && <span>{`engine ${stage.facts["engine"]}`}</span>}
          {typeof stage.facts["nodes"] === "number" && <span>{`a joint graph of ${count(stage.facts["nodes"], "node")}`}</span>}
          {typeof stage.facts["gradients"] === "number" && <span>{count(stage.facts["gradients"], "gradient")}</span>}
        </p>
      </header>
      {stage.start.length > 0 && (
        <Tabs label="Views of this stage" tabs={views} shown={view} show={setView}>
          {view === "changes" && <DiffView rows={rows} />}
          {view === "start" && <Listing nodes={stage.start} label="The graph at the start of the stage" />}
          {view === "end" && <Listing nodes={end} label="The graph at the end of the stage" />}
          {view === "modules" && <Picture rows={rows} modulesOnly />}
          {view === "misses" && (
            <div class="misses">
              {missing.map((run) => (
                <section key={run.index}>
                  <h2>
                    <PassLink run={run}>{run.pass.name}</PassLink>
                  </h2>
                  <Misses run={run} />
                </section>
              ))}
            </div>
          )}
        </Tabs>
      )}
    </article>
  );
}
