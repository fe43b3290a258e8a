// Two graphs side by side, aligned by the identity of their nodes: a node that was only renamed or moved is no change.
import type { GraphNode } from "./schema";

export type Kind = "same" | "added" | "removed" | "changed";

export interface Row {
  kind: Kind;
  before: GraphNode | null;
  after: GraphNode | null;
  moved: boolean;
}

export function diffRows(before: GraphNode[], after: GraphNode[]): Row[] {
  const place = new Map(before.map((node, index) => [node.id, index]));
  const staying = new Set(after.map((node) => node.id));
  const common = after.filter((node) => place.has(node.id));
  const inOrder = longestRise(common.map((node) => place.get(node.id)!));
  const isFixed = new Set(common.filter((_, index) => inOrder.has(index)).map((node) => node.id));
  const gone = removedBehind(before, staying, isFixed);
  const names = renamed(common, (node) => before[place.get(node.id)!]!);
  const rows: Row[] = [...(gone.get(null) ?? [])];
  for (const node of after) {
    const index = place.get(node.id);
    if (index === undefined) {
      rows.push({ kind: "added", before: null, after: node, moved: false });
      continue;
    }
    const old = before[index]!;
    const kind = isSame(old, node, names) ? "same" : "changed";
    rows.push({ kind, before: old, after: node, moved: !isFixed.has(node.id) });
    rows.push(...(gone.get(node.id) ?? []));
  }
  return rows;
}

/** Old names to new ones, of the nodes that only have another name. */
function renamed(common: GraphNode[], old: (node: GraphNode) => GraphNode): Map<string, string> {
  const names = new Map<string, string>();
  for (const node of common) if (old(node).name !== node.name) names.set(old(node).name, node.name);
  return names;
}

function isSame(old: GraphNode, now: GraphNode, names: Map<string, string>): boolean {
  if (old === now) return true;
  if (old.value !== now.value) return false;
  if (old.code === now.code) return equal(old.inputs, now.inputs);
  if (!names.size || !equal(old.inputs, now.inputs)) return false;
  const spelled = old.code.replace(WORD, (word) => names.get(word) ?? word);
  return spelled.replace(/^\w+(?= = )/, now.name) === now.code;
}

/** A name in code; neither part of a path, nor in quotes, nor a keyword of a call. */
const WORD = /(?<![\w.'"])[A-Za-z_]\w*\b(?!\s*=[^=])/g;

function equal(a: number[], b: number[]): boolean {
  return a.length === b.length && a.every((each, index) => each === b[index]);
}

/** Removed nodes by the node that stays in its place and stood before them. */
function removedBehind(before: GraphNode[], staying: Set<number>, isFixed: Set<number>): Map<number | null, Row[]> {
  const behind = new Map<number | null, Row[]>();
  let anchor: number | null = null;
  for (const node of before) {
    if (isFixed.has(node.id)) anchor = node.id;
    if (staying.has(node.id)) continue;
    const row: Row = { kind: "removed", before: node, after: null, moved: false };
    const rows = behind.get(anchor);
    if (rows) rows.push(row);
    else behind.set(anchor, [row]);
  }
  return behind;
}

/** The indices of a longest rising subsequence: what is not in it has moved. */
export function longestRise(values: number[]): Set<number> {
  const tails: number[] = [];
  const parent = new Array<number>(values.length).fill(-1);
  values.forEach((value, index) => {
    let [low, high] = [0, tails.length];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (values[tails[middle]!]! < value) low = middle + 1;
      else high = middle;
    }
    if (low > 0) parent[index] = tails[low - 1]!;
    tails[low] = index;
  });
  const rise = new Set<number>();
  for (let index = tails.at(-1) ?? -1; index >= 0; index = parent[index]!) rise.add(index);
  return rise;
}
