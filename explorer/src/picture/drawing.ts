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
  /** The path of a module that can be opened and closed. */
  opens: string | null;
}

export interface Drawing {
  direction: "DOWN" | "RIGHT";
  boxes: Box[];
  edges: { from: string; to: string; kind: Kind }[];
}

const MOST_NODES = 70;
const NO_WORK = new Set(["placeholder", "output", "get_attr"]);

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
  return { boxes, edges, direction: "DOWN" };
}

export const ROOT = "the whole graph";
const ELSEWHERE = "outside of modules";

/** The modules as a tree from left to right; what is inside of those that are not opened is counted, not drawn. */
export function moduleTree(rows: Row[], modules: ModuleInfo[], moduleOf: (node: GraphNode) => number | null, opened: Set<string>): Drawing {
  const kinds = new Map(modules.map(({ path, kind }) => [path, kind]));
  const tallies = new Map<string, { nodes: number; changes: number }>([[ROOT, { nodes: 0, changes: 0 }]]);
  const parents = new Map<string, string>();
  for (const row of rows) {
    const node = (row.after ?? row.before)!;
    if (NO_WORK.has(node.op)) continue;
    const module = moduleOf(node);
    const line = [ROOT, ...prefixes(module === null ? ELSEWHERE : modules[module]!.path || ELSEWHERE)];
    line.forEach((path, depth) => {
      const { nodes, changes } = tallies.get(path) ?? { nodes: 0, changes: 0 };
      tallies.set(path, { nodes: nodes + 1, changes: changes + (row.kind === "same" ? 0 : 1) });
      if (depth) parents.set(path, line[depth - 1]!);
    });
  }
  const isParent = new Set(parents.values());
  const isShown = (path: string): boolean => path === ROOT || ((parents.get(path) === ROOT || opened.has(parents.get(path)!)) && isShown(parents.get(path)!));
  const shown = [...tallies].filter(([path]) => isShown(path));
  const boxes = shown.map(([path, { nodes, changes }]): Box => {
    const text = [kinds.get(path), `${nodes} node${nodes === 1 ? "" : "s"}`, changes ? `${changes} changed` : ""].filter(Boolean).join(" · ");
    return { id: path, title: shortPath(path), text, kind: changes ? "changed" : "same", node: null, opens: isParent.has(path) && path !== ROOT ? path : null };
  });
  const edges = shown.flatMap(([path]) => (path === ROOT ? [] : [{ from: parents.get(path)!, to: path, kind: "same" as const }]));
  return { boxes, edges, direction: "RIGHT" };
}

/** The last part of a path; a number says nothing without what stands before it. */
function shortPath(path: string): string {
  const parts = path.split(".");
  return parts.slice(/^\d+$/.test(parts.at(-1)!) ? -2 : -1).join(".");
}

/** The modules that are open at first: as many levels as can be taken in at once. */
export function firstOpened(modules: ModuleInfo[], most = 24): Set<string> {
  const paths = new Set(modules.flatMap(({ path }) => prefixes(path)));
  const deepest = Math.max(0, ...[...paths].map((path) => path.split(".").length));
  const upTo = (depth: number) => [...paths].filter((path) => path.split(".").length <= depth);
  let depth = 1;
  while (depth < deepest && upTo(depth + 1).length <= most) depth++;
  return new Set(upTo(depth - 1));
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
