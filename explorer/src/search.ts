// What a search finds: passes, nodes and lines of the user's program.
import type { Book, Run } from "./book";
import type { GraphNode, SourceLine } from "./schema";

export interface Found {
  passes: Run[];
  nodes: GraphNode[];
  sources: { index: number; line: SourceLine }[];
  /** How many nodes there are beyond those that are listed. */
  more: number;
}

const LISTED = 50;

export function search(book: Book, query: string): Found {
  const words = query.toLowerCase().split(/\s+/).filter(Boolean);
  if (!words.length) return { passes: [], nodes: [], sources: [], more: 0 };
  const fits = (text: string) => words.every((word) => text.includes(word));
  const passes = book.runs.filter(({ pass }) => fits(`${pass.address} ${pass.purpose}`.toLowerCase()));
  const sources = book.report.sources
    .map((line, index) => ({ index, line }))
    .filter(({ line }) => fits(`${line.file}:${line.line} ${line.code}`.toLowerCase()));
  const nodes = [...book.nodes.values()].filter((node) => fits(`${node.name} ${node.target} ${node.value ?? ""}`.toLowerCase()));
  const rank = (node: GraphNode) => (node.name.toLowerCase() === words[0] ? 0 : node.name.toLowerCase().startsWith(words[0]!) ? 1 : 2);
  nodes.sort((a, b) => rank(a) - rank(b) || b.id - a.id);
  return {
    passes: passes.sort((a, b) => Number(b.pass.status === "changed") - Number(a.pass.status === "changed")).slice(0, LISTED),
    nodes: nodes.slice(0, LISTED),
    sources: sources.slice(0, LISTED),
    more: Math.max(0, nodes.length - LISTED),
  };
}
