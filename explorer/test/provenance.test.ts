import { expect, test } from "vitest";
import { Book } from "../src/book";
import { fatesOf } from "../src/fates";
import { Provenance } from "../src/provenance";
import { format, parse } from "../src/route";
import { search } from "../src/search";
import { delta, ids, node, pass, report, stage } from "./graphs";

/** A linear that is traced to a product and a transposition, which a pass makes one; the backward has one product. */
function linear() {
  const captured = node(1, "y = torch.nn.functional.linear(x)", { source: 0, module: 0 });
  const t = node(2, "t = torch.ops.aten.t.default(w)", { from: [1] });
  const mm = node(3, "mm = torch.ops.aten.mm.default(x, t)", { from: [1] });
  const back = node(4, "mm_1 = torch.ops.aten.mm.default(g, w)", { from: [1] });
  const fused = node(5, "fused = torch.ops.aten.fused.default(x, w)", { from: [2, 3] });
  const change = delta({ removed: [2, 3], added: [{ after: null, node: fused }] });
  const events = [{ kind: "replaced", node: "mm", detail: "by fused" }];
  const match = { address: "joint/fuse:rule@0", rule: "rule", source: null, node: "mm", note: null, events, delta: change };
  const fuse = pass("joint/fuse", { matches: [match], delta: change, purpose: "Fuses products." });
  const forward = node(6, "fused = torch.ops.aten.fused.default(x, w)", { from: [5] });
  const backward = node(7, "mm = torch.ops.aten.mm.default(g, w)", { from: [4] });
  const stages = [
    stage("pre_grad", "captured", [captured]),
    stage("joint", "joint", [t, mm, back], [fuse, pass("joint/fuse", { status: "unchanged" })]),
    stage("post_grad", "forward", [forward], [pass("post_grad/idle", { status: "unchanged" })]),
    stage("post_grad", "backward", [backward], [pass("post_grad/idle", { status: "unchanged" })]),
  ];
  const made = report(stages, { sources: [{ file: "/a/net.py", line: 3, code: "y = self.up(x)" }], modules: [{ path: "h.0.up", kind: "Linear" }] });
  made.graphs[0]!.kernels = [{ name: "kernel_0", role: "forward", language: "triton", code: "", nodes: [6] }];
  const book = new Book(made);
  return { book, provenance: new Provenance(book) };
}

test("a node leads back to the user's line over all stages", () => {
  const { provenance } = linear();
  expect(ids(provenance.ancestors(6))).toEqual([5, 2, 3, 1]);
  expect([provenance.source(6), provenance.module(6)]).toEqual([0, 0]);
});

test("a node leads forward to what runs for it, and to its kernel", () => {
  const { provenance } = linear();
  expect(ids(provenance.finals(1)).sort()).toEqual([6, 7]);
  expect([provenance.endsIn(6), provenance.endsIn(7), provenance.endsIn(5)]).toEqual(["forward", "backward", null]);
  expect(provenance.kernels(6).map((kernel) => kernel.name)).toEqual(["kernel_0"]);
});

test("the pass and the match that made or removed a node are known", () => {
  const { provenance } = linear();
  const told = (id: number) => provenance.changesOf(id).map((change) => `${change.what} ${change.match?.address}`);
  expect(told(5)).toEqual(["made joint/fuse:rule@0"]);
  expect(told(3)).toEqual(["removed joint/fuse:rule@0"]);
  expect(provenance.replacement(3)).toBe("by fused");
});

test("a module's fate says what runs in its place, and which passes touched it", () => {
  const { book, provenance } = linear();
  const [fate] = fatesOf(book, provenance, book.report.graphs[0]!);
  expect(fate).toMatchObject({ label: "h.0.up", kind: "Linear", captured: ["linear"], forward: ["fused"], backward: ["mm"] });
  expect(fate!.passes.map((run) => run.pass.address)).toEqual(["joint/fuse"]);
});

test("a search finds passes, nodes and lines, by all of its words", () => {
  const { book } = linear();
  expect(search(book, "fuses").passes.map((run) => run.pass.name)).toEqual(["fuse"]);
  expect(ids(search(book, "mm").nodes)).toContain(3);
  expect(search(book, "net.py self.up").sources.map((found) => found.index)).toEqual([0]);
  expect(search(book, "no such thing")).toEqual({ passes: [], nodes: [], sources: [], more: 0 });
  expect(search(book, " ").nodes).toEqual([]);
});

test("every address leads back to itself", () => {
  const { book } = linear();
  const addresses = ["#", "#joint", "#joint/fuse", "#joint/fuse?run=2", "#joint/fuse:rule@0?view=picture&node=5", "#kernels?kernel=0", "#partition?module=0", "#post_grad?role=backward", "#post_grad/idle?role=backward&node=7"];
  for (const address of addresses) expect(format(parse(address, book), book)).toBe(address);
});

test("an address that leads nowhere leads to the overview", () => {
  const { book } = linear();
  expect(parse("#joint/gone", book)).toMatchObject({ page: "overview", lost: "joint/gone" });
  expect(parse("#%E0%A4%A", book).page).toBe("overview");
});
