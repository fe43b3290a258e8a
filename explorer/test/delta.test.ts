import { expect, test } from "vitest";
import { applyDelta } from "../src/delta";
import { Replay } from "../src/replay";
import { delta, ids, node, pass, stage } from "./graphs";

const three = [node(1, "a = f()"), node(2, "b = g(a)"), node(3, "c = h(b)")];

test("removed nodes go, changed ones take their place", () => {
  const after = applyDelta(three, delta({ removed: [2], changed: [node(3, "c = h(a)")] }));
  expect(after.map((each) => each.code)).toEqual(["a = f()", "c = h(a)"]);
});

test("added nodes stand behind the node they name, one behind the other", () => {
  const [x, y, z] = [node(7, "x = f()"), node(8, "y = f()"), node(9, "z = f()")];
  const added = [{ after: null, node: x! }, { after: 2, node: y! }, { after: 8, node: z! }];
  expect(ids(applyDelta(three, delta({ added })))).toEqual([7, 1, 2, 8, 9, 3]);
});

test("moved nodes leave no hole, at the ends, too", () => {
  expect(ids(applyDelta(three, delta({ moved: [{ id: 3, after: null }] })))).toEqual([3, 1, 2]);
  expect(ids(applyDelta(three, delta({ moved: [{ id: 1, after: 3 }, { id: 2, after: 1 }] })))).toEqual([3, 1, 2]);
});

test("a graph is not changed by what is made of it", () => {
  applyDelta(three, delta({ removed: [1], moved: [{ id: 3, after: null }] }));
  expect(ids(three)).toEqual([1, 2, 3]);
});

test("matches are steps from the graph before the pass to the graph behind it", () => {
  const match = (id: number) => ({
    address: `joint/p@${id}`, rule: null, source: null, node: "", note: null, events: [], delta: delta({ removed: [id] }),
  });
  const run = pass("joint/p", { matches: [match(1), match(2)], delta: delta({ removed: [1, 2] }) });
  const replay = new Replay(stage("joint", "joint", three, [run]));
  expect(replay.aroundMatch(0, 0)!.map(ids)).toEqual([[1, 2, 3], [2, 3]]);
  expect(replay.aroundMatch(0, 1)!.map(ids)).toEqual([[2, 3], [3]]);
  expect(ids(replay.end())).toEqual([3]);
});

test("a match whose own change is not known has no sides of its own", () => {
  const match = { address: "joint/p@0", rule: null, source: null, node: "", note: null, events: [], delta: null };
  const replay = new Replay(stage("joint", "joint", three, [pass("joint/p", { matches: [match] })]));
  expect(replay.aroundMatch(0, 0)).toBeNull();
});
