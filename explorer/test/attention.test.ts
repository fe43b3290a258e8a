import { expect, test } from "vitest";
import { unfusedAttention } from "../src/attention";

const pass = (name: string, ...reasons: string[]) => ({ name, rejects: reasons.map((reason) => ({ rule: null, nodes: [], reason })) });

test("the overview says why attention has no kernel, once each", () => {
  const dropout = "torch's attention kernel for CPUs has no dropout";
  const few = "with fewer than 16 keys, torch's attention kernel for CPUs hides NaN";
  expect(unfusedAttention([pass("fuse_attention", dropout, few, dropout, "the weights are used elsewhere"), pass("pad_mm", "attention kernel")])).toEqual([dropout, few]);
});

test("nothing is said where nothing is missing", () => {
  expect(unfusedAttention([pass("fuse_attention")])).toEqual([]);
});
