// The rows of a diff as the lines of a listing: one column or two, with what did not change folded away.
import type { Kind, Row } from "./diff";
import type { GraphNode } from "./schema";

/** One side of a line: a node, and the part of its code that differs from the other side's. */
export interface Side {
  node: GraphNode;
  mark: [number, number] | null;
}

export type Line =
  | { type: "frame"; text: string }
  | { type: "fold"; from: number; hidden: number }
  | { type: "code"; kind: Kind; sign: string; side: Side }
  | { type: "pair"; kind: Kind; sign: string; left: Side | null; right: Side | null };

type Item = Row | { from: number; hidden: number };

const CONTEXT = 3;
const WORTH_FOLDING = 3;

/** Rows near a change or near the chosen node, and folds in place of the others, but for what was opened. */
export function folded(rows: Row[], opened: [number, number][], chosen: number | null): Item[] {
  const shown = new Uint8Array(rows.length);
  rows.forEach((row, index) => {
    const isChosen = chosen !== null && (row.after ?? row.before)!.id === chosen;
    if (row.kind === "same" && !row.moved && !isChosen) return;
    shown.fill(1, Math.max(0, index - CONTEXT), index + CONTEXT + 1);
  });
  const items: Item[] = [];
  for (let at = 0; at < rows.length; ) {
    let end = at;
    while (end < rows.length && !shown[end]) end++;
    const isOpen = opened.some(([from, to]) => from <= at && end <= to);
    if (end - at >= WORTH_FOLDING && !isOpen) items.push({ from: at, hidden: end - at });
    else items.push(...rows.slice(at, end));
    if (end < rows.length) items.push(rows[end]!);
    at = end + 1;
  }
  return items;
}

export function oneColumn(items: Item[]): Line[] {
  return items.flatMap((item): Line[] => {
    if ("hidden" in item) return [{ type: "fold", ...item }];
    const { kind, before, after } = item;
    if (kind !== "changed") {
      const sign = kind === "added" ? "+" : kind === "removed" ? "−" : item.moved ? "↕" : "";
      return [{ type: "code", kind, sign, side: { node: (after ?? before)!, mark: null } }];
    }
    const [left, right] = marked(before!, after!);
    return [
      { type: "code", kind: "removed", sign: "−", side: left },
      { type: "code", kind: "added", sign: "+", side: right },
    ];
  });
}

/** What was removed stands beside what was added in its place. */
export function twoColumns(items: Item[]): Line[] {
  const lines: Line[] = [];
  for (let at = 0; at < items.length; at++) {
    const item = items[at]!;
    if ("hidden" in item) lines.push({ type: "fold", ...item });
    else if (item.kind === "removed" || item.kind === "added") {
      const block = blockAt(items, at);
      const gone = block.filter((row) => row.kind === "removed");
      const come = block.filter((row) => row.kind === "added");
      for (let i = 0; i < Math.max(gone.length, come.length); i++) {
        const [left, right] = [plain(gone[i]?.before), plain(come[i]?.after)];
        lines.push({ type: "pair", kind: left && right ? "changed" : left ? "removed" : "added", sign: "", left, right });
      }
      at += block.length - 1;
    } else {
      const [left, right] = item.kind === "changed" ? marked(item.before!, item.after!) : [plain(item.before), plain(item.after)];
      lines.push({ type: "pair", kind: item.kind, sign: item.moved ? "↕" : "", left, right });
    }
  }
  return lines;
}

/** A whole graph as a function, its inputs one a line. */
export function listing(nodes: GraphNode[]): Line[] {
  const code = (node: GraphNode): Line => ({ type: "code", kind: "same", sign: "", side: { node, mark: null } });
  const inputs = nodes.filter((node) => node.op === "placeholder");
  const body = nodes.filter((node) => node.op !== "placeholder");
  const self = nodes.some((node) => node.op === "get_attr" || node.op === "call_module") ? "self, " : "";
  if (!inputs.length) return [{ type: "frame", text: `def forward(${self}):` }, ...body.map(code)];
  return [{ type: "frame", text: `def forward(${self}` }, ...inputs.map(code), { type: "frame", text: "):" }, ...body.map(code)];
}

/** The text of a listing: Python that runs. */
export function textOf(lines: Line[]): string {
  const texts = lines.map((line) => {
    if (line.type === "frame") return line.text;
    if (line.type !== "code") return "";
    return `    ${codeOf(line.side.node)}${comment(line.side.node)}`;
  });
  return ["import operator", "", "import torch", "", "", ...texts, ""].join("\n");
}

export function codeOf(node: GraphNode): string {
  if (node.op !== "placeholder") return node.code;
  return `${/^\w+\s*=/.test(node.code) ? node.code : node.name},`;
}

export function comment(node: GraphNode): string {
  return node.value && node.op !== "output" ? `  # ${node.value}` : "";
}

/** How much of a line is seen without scrolling, about. */
export const ROOM = 110;

/** A long line whose change may be far to the right: its beginning, and what is around the change. */
export function excerpt(code: string, mark: [number, number] | null): { code: string; mark: [number, number] | null } {
  if (!mark || code.length <= ROOM || mark[1] <= ROOM) return { code, mark };
  const start = `${code.slice(0, 16)} … `;
  const [from, to] = [Math.max(16, mark[0] - 30), Math.min(code.length, mark[1] + 30)];
  const text = start + code.slice(from, to) + (to < code.length ? " …" : "");
  return { code: text, mark: [mark[0] - from + start.length, mark[1] - from + start.length] };
}

function plain(node: GraphNode | null | undefined): Side | null {
  return node ? { node, mark: null } : null;
}

function blockAt(items: Item[], at: number): Row[] {
  const block: Row[] = [];
  for (const item of items.slice(at)) {
    if ("hidden" in item || (item.kind !== "removed" && item.kind !== "added")) break;
    block.push(item);
  }
  return block;
}

function marked(before: GraphNode, after: GraphNode): [Side, Side] {
  const [old, now] = [codeOf(before), codeOf(after)];
  const [a, b] = [words(old), words(now)];
  let start = 0;
  while (start < a.length && start < b.length && a[start] === b[start]) start++;
  let end = 0;
  while (end < a.length - start && end < b.length - start && a.at(-1 - end) === b.at(-1 - end)) end++;
  const range = (list: string[], text: string): [number, number] => [
    list.slice(0, start).join("").length,
    text.length - (end ? list.slice(-end).join("").length : 0),
  ];
  return [
    { node: before, mark: range(a, old) },
    { node: after, mark: range(b, now) },
  ];
}

function words(text: string): string[] {
  return text.match(/\w+|\s+|[^\w\s]/g) ?? [];
}
