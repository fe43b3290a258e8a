import { expect, test } from "vitest";
import { diffRows, longestRise } from "../src/diff";
import { excerpt, folded, listing, oneColumn, textOf, twoColumns } from "../src/lines";
import type { GraphNode } from "../src/schema";
import { node } from "./graphs";

const kinds = (before: GraphNode[], after: GraphNode[]) => diffRows(before, after).map((row) => `${row.kind} ${(row.after ?? row.before)!.name}${row.moved ? " moved" : ""}`);

test("a node that was renamed is the same, and so is its reader", () => {
  const before = [node(1, "a = f()"), node(2, "b = g(a, dim=a)", { inputs: [1] })];
  const after = [node(1, "x = f()"), node(2, "b = g(x, dim=x)", { inputs: [1] })];
  expect(kinds(before, after)).toEqual(["same x", "same b"]);
});

test("another node under the old name is a change of its reader", () => {
  const before = [node(1, "a = f()"), node(2, "b = g(a)", { inputs: [1] })];
  const after = [node(3, "a = f()"), node(2, "b = g(a)", { inputs: [3] })];
  expect(kinds(before, after)).toEqual(["removed a", "added a", "changed b"]);
});

test("a keyword that is called like a renamed node stays a keyword", () => {
  const before = [node(1, "dim = f()"), node(2, "b = g(dim, dim=1)", { inputs: [1] })];
  const after = [node(1, "d = f()"), node(2, "b = g(d, dim=1)", { inputs: [1] })];
  expect(kinds(before, after)).toEqual(["same d", "same b"]);
});

test("a moved node is the same, and nothing else has moved", () => {
  const [a, b, c, d] = [node(1, "a = f()"), node(2, "b = f()"), node(3, "c = f()"), node(4, "d = f()")] as const;
  expect(kinds([a, b, c, d], [b, c, a, d])).toEqual(["same b", "same c", "same a moved", "same d"]);
});

test("removed nodes stand where they stood", () => {
  const [a, b, c, d] = [node(1, "a = f()"), node(2, "b = f()"), node(3, "c = f()"), node(4, "d = f()")] as const;
  expect(kinds([a, b, c], [a, d, c])).toEqual(["same a", "removed b", "added d", "same c"]);
});

test("another value is a change, even under the same code", () => {
  expect(kinds([node(1, "a = f()")], [node(1, "a = f()", { value: "bf16[2]" })])).toEqual(["changed a"]);
});

test("the longest rise is found", () => {
  expect([...longestRise([3, 1, 2, 5, 4])].sort()).toHaveLength(3);
  expect(longestRise([])).toEqual(new Set());
});

test("what is far from a change is folded, and opens", () => {
  const many = Array.from({ length: 40 }, (_, i) => node(i, `n${i} = f()`));
  const after = many.map((each, i) => (i === 20 ? node(20, "n20 = g()") : each));
  const rows = diffRows(many, after);
  const items = folded(rows, [], null);
  expect(items.filter((item) => "hidden" in item)).toEqual([{ from: 0, hidden: 17 }, { from: 24, hidden: 16 }]);
  expect(folded(rows, [[0, 17]], null)).toHaveLength(items.length + 16);
  expect(folded(rows, [[0, 17]], 5)).toHaveLength(items.length + 16);
  expect(folded(rows, [], 5).filter((item) => "hidden" in item)).toHaveLength(2);
});

test("the part of a line that changed is marked on both sides", () => {
  const rows = diffRows([node(1, "a = f(x, 1)")], [node(1, "a = f(y, 1)")]);
  const lines = oneColumn(rows).map((line) => (line.type === "code" ? [line.sign, line.side.mark] : null));
  expect(lines).toEqual([["−", [6, 7]], ["+", [6, 7]]]);
});

test("what went and what came in its place stand side by side", () => {
  const rows = diffRows([node(1, "a = f()"), node(2, "b = f()")], [node(3, "c = f()")]);
  const pairs = twoColumns(rows).map((line) => (line.type === "pair" ? [line.left?.node.name, line.right?.node.name] : null));
  expect(pairs).toEqual([["a", "c"], ["b", undefined]]);
});

test("a listing is a function that Python reads", () => {
  const nodes = [node(1, "# x: an input", { name: "x", op: "placeholder" }), node(2, "y = torch.sin(x)"), node(3, "return (y,)", { op: "output" })];
  expect(textOf(listing(nodes)).split("\n").slice(5)).toEqual(["def forward(", "    x,  # f32[2]", "):", "    y = torch.sin(x)  # f32[2]", "    return (y,)", ""]);
});

test("of a long line, what is around the change is shown", () => {
  const code = `return (${Array.from({ length: 60 }, (_, i) => `v${i}`).join(", ")})`;
  const at = code.indexOf("v50");
  const { code: text, mark } = excerpt(code, [at, at + 3]);
  expect(text.length).toBeLessThan(110);
  expect(text.slice(...mark!)).toBe("v50");
  expect(excerpt("a = f(x)", [6, 7])).toEqual({ code: "a = f(x)", mark: [6, 7] });
});
