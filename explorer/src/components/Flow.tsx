// The way of a graph through the stages.
import { linkTo, useApp } from "../app";
import { count, stageTitle, time } from "../format";
import type { Graph, Stage } from "../schema";
import { byName, secondsOf } from "../stages";
import { targetOf } from "./StageEntry";

/** The stages in their order, each with what it made of the graph. */
export function Flow({ graph }: { graph: Graph }) {
  const app = useApp();
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
              <a key={stage.key} class={stage.failure ? "bad" : undefined} href={linkTo(app, targetOf(app, graph, stage))}>
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

function ChangedIt({ stages }: { stages: Stage[] }) {
  const changed = stages.flatMap((stage) => stage.passes).filter((pass) => pass.status === "changed").length;
  return changed ? <span class="aside">{`${count(changed, "pass", "passes")} changed it`}</span> : null;
}

function parted({ facts }: Stage): string {
  const [forward, backward] = [facts["forward_nodes"], facts["backward_nodes"]];
  return typeof backward === "number" ? `${forward} forward, ${backward} backward` : "forward only";
}

function told(graph: Graph, stage: Stage): string {
  if (stage.failure) return "failed";
  if (stage.facts["left_out"]) return "not run";
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
