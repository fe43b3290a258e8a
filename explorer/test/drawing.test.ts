import { expect, test } from "vitest";
import { diffRows } from "../src/diff";
import { ROOT, changedRegion, firstOpened, moduleTree } from "../src/picture/drawing";
import { node } from "./graphs";

const modules = [{ path: "h.0.up", kind: "Linear" }, { path: "h.0.down", kind: "Linear" }, { path: "head", kind: "Linear" }];

test("the changed region holds what changed and its neighbours, and not the rest", () => {
  const before = Array.from({ length: 30 }, (_, i) => node(i, `n${i} = f()`, { inputs: i ? [i - 1] : [] }));
  const after = before.map((each) => (each.id === 10 ? { ...each, code: "n10 = g()" } : each));
  const { boxes, edges } = changedRegion(diffRows(before, after))!;
  expect(boxes.map((box) => `${box.title} ${box.kind}`)).toEqual(["n9 same", "n10 changed", "n11 same"]);
  expect(edges.map(({ from, to }) => `${from} ${to}`)).toEqual(["9 10", "10 11"]);
});

test("too many changes are no region", () => {
  const after = Array.from({ length: 500 }, (_, i) => node(i, `n${i} = f()`));
  expect(changedRegion(diffRows([], after))).toBeNull();
});

test("a closed module counts what is inside of it", () => {
  const before = [node(1, "a = f()", { module: 0 }), node(2, "b = f()", { module: 1 }), node(3, "c = f()", { module: 2 }), node(4, "d = f()")];
  const after = before.map((each) => (each.id === 2 ? { ...each, code: "b = g()" } : each));
  const drawn = (opened: string[]) => moduleTree(diffRows(before, after), modules, (each) => each.module, new Set(opened)).boxes.map((box) => `${box.id}: ${box.text}`);
  const outside = "outside of modules: 1 node";
  expect(drawn([])).toEqual([`${ROOT}: 4 nodes · 1 changed`, "h: 2 nodes · 1 changed", "head: Linear · 1 node", outside]);
  expect(drawn(["h"])).toContain("h.0: 2 nodes · 1 changed");
  expect(drawn(["h", "h.0"])).toContain("h.0.down: Linear · 1 node · 1 changed");
  expect(drawn(["h.0"])).toHaveLength(4);
});

test("as many levels are open as can be taken in", () => {
  expect(firstOpened(modules, 24)).toEqual(new Set(["h", "head", "h.0"]));
  expect(firstOpened(modules, 3)).toEqual(new Set(["h", "head"]));
  expect(firstOpened(modules, 2)).toEqual(new Set());
});
