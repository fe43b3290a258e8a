// The graph behind a change, from the graph before it.
import type { Delta, GraphNode } from "./schema";

export function applyDelta(nodes: GraphNode[], delta: Delta): GraphNode[] {
  const removed = new Set(delta.removed);
  const changed = new Map(delta.changed.map((node) => [node.id, node]));
  const result: GraphNode[] = [];
  for (const node of nodes) if (!removed.has(node.id)) result.push(changed.get(node.id) ?? node);
  // What is inserted mostly stands behind what was inserted last.
  let last = 0;
  const placeOf = (id: number) => (result[last]?.id === id ? last : result.findIndex((node) => node.id === id));
  const insert = (node: GraphNode, after: number | null) => {
    const place = after === null ? -1 : placeOf(after);
    last = place < 0 && after !== null ? result.length : place + 1;
    result.splice(last, 0, node);
  };
  for (const { after, node } of delta.added) insert(node, after);
  for (const { id, after } of delta.moved) {
    const place = placeOf(id);
    if (place >= 0 && id !== after) insert(result.splice(place, 1)[0]!, after);
  }
  return result;
}
