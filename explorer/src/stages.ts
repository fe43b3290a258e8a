// Stages of one name, which work on the forward and on the backward, taken together.
import type { Stage } from "./schema";

/** Forward and backward of a stage stand together. */
export function byName(stages: Stage[]): Stage[][] {
  const groups = new Map<string, Stage[]>();
  for (const stage of stages) groups.set(stage.name, [...(groups.get(stage.name) ?? []), stage]);
  return [...groups.values()];
}

export function secondsOf(stages: Stage[]): number {
  return stages.reduce((total, stage) => total + stage.seconds, 0);
}
