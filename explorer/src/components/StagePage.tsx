// A stage: what it did as a whole, and its graph as it began and as it ended.
import { useMemo, useState } from "preact/hooks";
import { useApp } from "../app";
import { diffRows } from "../diff";
import { count, stageTitle, time } from "../format";
import type { Stage } from "../schema";
import { DiffView } from "./DiffView";
import { Listing } from "./Listing";
import { Picture } from "./Picture";

const ABOUT: Record<string, string> = {
  pre_grad: "The graph as it was captured from your program, before anything is differentiated.",
  autograd: "Traces the captured graph to a joint graph: forward and backward together, in ATen operators.",
  joint: "Forward and backward together, in ATen operators, before they are parted.",
  partition: "Parts the joint graph into forward and backward, and chooses what is saved between them.",
  post_grad: "One of the two graphs on its own, right before code is made of it.",
  engine: "Makes the graph runnable.",
};
const VIEWS = ["Start", "End", "Changes", "Modules"] as const;

export function StagePage({ stage }: { stage: Stage }) {
  const { book } = useApp();
  const changed = stage.passes.some((pass) => pass.delta);
  const [view, setView] = useState<(typeof VIEWS)[number]>(changed ? "Changes" : "Start");
  const end = book.replay(stage).end();
  const rows = useMemo(() => diffRows(stage.start, end), [stage, end]);
  const views = VIEWS.filter((name) => changed || name === "Start" || name === "Modules");
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
        <>
          <div class="tabs" role="tablist" aria-label="Ways to look at this stage">
            {views.map((name) => (
              <button key={name} type="button" role="tab" aria-selected={view === name} onClick={() => setView(name)}>
                {name === "Start" && !changed ? "Graph" : name}
              </button>
            ))}
          </div>
          <div class="tab-body" role="tabpanel" aria-label={view}>
            {view === "Changes" && <DiffView rows={rows} />}
            {view === "Start" && <Listing nodes={stage.start} label="The graph as the stage began" />}
            {view === "End" && <Listing nodes={end} label="The graph as the stage ended" />}
            {view === "Modules" && <Picture rows={rows} modulesOnly />}
          </div>
        </>
      )}
    </article>
  );
}
