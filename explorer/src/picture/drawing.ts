// What a picture shows: the changed region node by node, or modules as boxes. Never a whole flat graph.
import type { Kind, Row } from "../diff";
import { shortTarget } from "../format";
import type { GraphNode, ModuleInfo } from "../schema";

export interface Box {
  id: string;
  title: string;
  text: string;
  kind: Kind;
  node: number | null;
  /** The path of a module that can be opened. */
  opens: string | null;
}

export interface Drawing {
  boxes: Box[];
  edges: { from: string; to: string; kind: Kind }[];
}

export const MOST_NODES = 70;

/** Changed nodes and their neighbours; null where these are too many to be read. */
export function changedRegion(rows: Row[]): Drawing | null {
  const kinds = new Map(rows.map((row) => [idOf(row), row.kind]));
  const core = rows.filter((row) => row.kind !== "same").map(idOf);
  if (!core.length || core.length > MOST_NODES) return null;
  const shown = new Set(core);
  for (const row of rows) {
    const isCore = row.kind !== "same";
    for (const input of inputsOf(row)) {
      const fromCore = kinds.get(input) !== undefined && kinds.get(input) !== "same";
      if (isCore && kinds.has(input)) shown.add(input);
      if (fromCore && row.after?.op !== "output") shown.add(idOf(row));
    }
  }
  if (shown.size > 2 * MOST_NODES) return null;
  const boxes = rows.filter((row) => shown.has(idOf(row))).map((row): Box => {
    const node = (row.after ?? row.before)!;
    const text = node.op === "placeholder" ? "input" : node.op === "output" ? "output" : shortTarget(node.target);
    return { id: String(node.id), title: node.name, text: text === node.name ? (node.value ?? "") : text, kind: row.kind, node: node.id, opens: null };
  });
  const edges = rows.filter((row) => shown.has(idOf(row))).flatMap((row) => {
    const [old, now] = [row.before?.inputs ?? [], row.after?.inputs ?? []];
    const both = [...new Set([...old, ...now])].filter((input) => shown.has(input));
    return both.map((input) => {
      const kind: Kind = !now.includes(input) ? "removed" : !old.includes(input) ? "added" : "same";
      return { from: String(input), to: String(idOf(row)), kind };
    });
  });
  return { boxes, edges };
}

/** The modules as boxes, those in `opened` by their parts. */
export function moduleTree(rows: Row[], modules: ModuleInfo[], moduleOf: (node: GraphNode) => number | null, opened: Set<string>): Drawing {
  const parents = new Set(modules.flatMap(({ path }) => prefixes(path).slice(0, -1)));
  const kinds = new Map(modules.map(({ path, kind }) => [path, kind]));
  const boxOf = new Map<number, string>();
  const boxes = new Map<string, Box & { count: number; changes: number }>();
  for (const row of rows) {
    const node = (row.after ?? row.before)!;
    if (node.op === "placeholder" || node.op === "output" || node.op === "get_attr") continue;
    const module = moduleOf(node);
    const path = module === null ? "" : modules[module]!.path;
    const parts = prefixes(path);
    const shown = parts.find((part) => !opened.has(part)) ?? path;
    const id = shown || "outside of modules";
    boxOf.set(node.id, id);
    const known = boxes.get(id) ?? { id, title: id, text: "", kind: "same", node: null, opens: parents.has(shown) && !opened.has(shown) ? shown : null, count: 0, changes: 0 };
    boxes.set(id, { ...known, count: known.count + 1, changes: known.changes + (row.kind === "same" ? 0 : 1) });
  }
  const edges = new Map<string, Drawing["edges"][number]>();
  for (const row of rows) {
    const to = boxOf.get(idOf(row));
    for (const input of inputsOf(row)) {
      const from = boxOf.get(input);
      if (from && to && from !== to) edges.set(`${from}\0${to}`, { from, to, kind: "same" });
    }
  }
  return { boxes: [...boxes.values()].map((box) => described(box, kinds.get(box.id))), edges: [...edges.values()] };
}

function described({ count, changes, ...box }: Box & { count: number; changes: number }, kind: string | undefined): Box {
  const text = [kind, `${count} node${count === 1 ? "" : "s"}`, changes ? `${changes} changed` : ""].filter(Boolean).join(" · ");
  return { ...box, text, kind: changes ? "changed" : "same" };
}

/** The modules that are open at first: those of which there are few, so that a list of layers is seen as layers. */
export function firstOpened(modules: ModuleInfo[], most = 30): Set<string> {
  const opened = new Set<string>();
  const paths = modules.map(({ path }) => path).filter(Boolean);
  for (;;) {
    const visible = new Set(paths.map((path) => prefixes(path).find((part) => !opened.has(part)) ?? path));
    const next = [...visible].filter((path) => !opened.has(path) && paths.some((other) => other.startsWith(`${path}.`)));
    const grown = next.reduce((total, path) => total + new Set(paths.filter((other) => other.startsWith(`${path}.`)).map((other) => other.slice(path.length + 1).split(".")[0])).size, visible.size);
    if (!next.length || grown > most) return opened;
    next.forEach((path) => opened.add(path));
  }
}

function prefixes(path: string): string[] {
  const parts = path.split(".");
  return parts.map((_, index) => parts.slice(0, index + 1).join("."));
}

function idOf(row: Row): number {
  return (row.after ?? row.before)!.id;
}

function inputsOf(row: Row): number[] {
  return [...new Set([...(row.before?.inputs ?? []), ...(row.after?.inputs ?? [])])];
}
