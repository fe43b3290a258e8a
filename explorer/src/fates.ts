// What happened to each module: what it was captured as, what runs in its place, which passes had a hand in it.
import type { Book, Run } from "./book";
import { shortTarget } from "./format";
import type { Provenance } from "./provenance";
import type { Graph, GraphNode } from "./schema";

export interface Fate {
  modules: number[];
  kind: string;
  /** The path, or the common form of several: "h.*.attn". */
  label: string;
  captured: string[];
  forward: string[];
  backward: string[];
  passes: Run[];
}

const FREE = new Set(
  ("view reshape _unsafe_view t transpose permute getitem expand slice unsqueeze squeeze detach alias select split " +
    "split_with_sizes chunk as_strided unbind flatten unflatten contiguous").split(" "),
);
const NO_WORK = new Set(["placeholder", "output", "get_attr"]);

/** The modules of a graph; those that differ only in a number and went the same way stand together. */
export function fatesOf(book: Book, provenance: Provenance, graph: Graph): Fate[] {
  const first = book.firstStage(graph);
  if (!first) return [];
  const captured = grouped(first.start, provenance);
  const ends = { forward: new Map<number, GraphNode[]>(), backward: new Map<number, GraphNode[]>() };
  for (const stage of book.finalStages(graph)) {
    const end = grouped(book.replay(stage).end(), provenance);
    for (const [module, nodes] of end) ends[stage.role === "backward" ? "backward" : "forward"].set(module, nodes);
  }
  const passes = passesByModule(book, provenance, graph);
  const fates = new Map<string, Fate>();
  for (const [module, nodes] of captured) {
    const { path, kind } = book.report.modules[module]!;
    const label = path.replace(/(^|\.)\d+(?=\.|$)/g, "$1*");
    const fate: Fate = {
      modules: [module],
      kind,
      label,
      captured: work(nodes),
      forward: work(ends.forward.get(module) ?? []),
      backward: work(ends.backward.get(module) ?? []),
      passes: [...(passes.get(module) ?? [])],
    };
    if (!fate.captured.length && !fate.forward.length && !fate.backward.length) continue;
    const key = JSON.stringify([label, kind, fate.captured, fate.forward, fate.backward, fate.passes.map((run) => run.pass.address)]);
    const alike = fates.get(key);
    if (alike) alike.modules.push(module);
    else fates.set(key, fate);
  }
  for (const fate of fates.values()) {
    if (fate.modules.length === 1) fate.label = book.report.modules[fate.modules[0]!]!.path;
  }
  return [...fates.values()];
}

/** "addmm", "mm ×2": operators that compute; views only where there is nothing else. */
export function work(nodes: GraphNode[]): string[] {
  const names = nodes.filter((node) => !NO_WORK.has(node.op)).map((node) => shortTarget(node.target));
  const busy = names.filter((name) => !FREE.has(name));
  const counts = new Map<string, number>();
  for (const name of busy.length ? busy : names) counts.set(name, (counts.get(name) ?? 0) + 1);
  return [...counts].map(([name, times]) => (times > 1 ? `${name} ×${times}` : name));
}

function grouped(nodes: GraphNode[], provenance: Provenance): Map<number, GraphNode[]> {
  const groups = new Map<number, GraphNode[]>();
  for (const node of nodes) {
    const module = node.module ?? provenance.module(node.id);
    if (module === null) continue;
    const group = groups.get(module);
    if (group) group.push(node);
    else groups.set(module, [node]);
  }
  return groups;
}

function passesByModule(book: Book, provenance: Provenance, graph: Graph): Map<number, Set<Run>> {
  const passes = new Map<number, Set<Run>>();
  for (const run of book.runs) {
    const delta = run.graph === graph ? run.pass.delta : null;
    if (!delta) continue;
    const touched = [...delta.removed, ...delta.changed.map((node) => node.id), ...delta.added.map(({ node }) => node.id)];
    for (const id of touched) {
      const module = provenance.module(id);
      if (module === null) continue;
      const known = passes.get(module) ?? new Set();
      passes.set(module, known.add(run));
    }
  }
  return passes;
}
