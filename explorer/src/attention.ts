// Attention that stays as it is, because torch has no kernel for it.
import type { PassRun } from "./schema";

/** Why, once each: dropout or fewer than 16 keys on a CPU, for example. Other refusals are on the page of the pass. */
export function unfusedAttention(passes: Pick<PassRun, "name" | "rejects">[]): string[] {
  const reasons = passes.filter((pass) => pass.name === "fuse_attention").flatMap((pass) => pass.rejects.map((reject) => reject.reason));
  return [...new Set(reasons)].filter((reason) => reason.includes("attention kernel"));
}
