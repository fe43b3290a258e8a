// The graph behind a change, from the graph before it.
import type { Delta, GraphNode } from "./schema";

export function applyDelta(nodes: GraphNode[], delta: Delta): GraphNode[] {
  const removed = new Set(delta.removed);
  const changed = new Map(delta.changed.map((node) => [node.id, node]));
  const kept = nodes.filter((node) => !removed.has(node.id)).map((node) => changed.get(node.id) ?? node);
  return delta.added.length || delta.moved.length ? reordered(kept, delta) : kept;
}

/** Insertions and moves in a linked list, so that each costs the same in a graph of any size. */
function reordered(nodes: GraphNode[], delta: Delta): GraphNode[] {
  const byId = new Map<number, GraphNode>();
  const next = new Map<number | null, number | null>();
  const previous = new Map<number | null, number | null>();
  let last: number | null = null;
  const link = (before: number | null, id: number | null) => {
    next.set(before, id);
    previous.set(id, before);
  };
  for (const node of nodes) {
    byId.set(node.id, node);
    link(last, node.id);
    last = node.id;
  }
  next.set(last, null);
  const insert = (id: number, after: number | null) => {
    const place = after === null || byId.has(after) ? after : lastOf(next);
    const follower: number | null = next.get(place) ?? null;
    link(place, id);
    if (follower === null) next.set(id, null);
    else link(id, follower);
  };
  for (const { after, node } of delta.added) {
    insert(node.id, after);
    byId.set(node.id, node);
  }
  for (const { id, after } of delta.moved) {
    if (!byId.has(id) || id === after) continue;
    const [left, right] = [previous.get(id) ?? null, next.get(id) ?? null];
    if (right === null) next.set(left, null);
    else link(left, right);
    insert(id, after);
  }
  const result: GraphNode[] = [];
  for (let id = next.get(null) ?? null; id !== null; id = next.get(id) ?? null) result.push(byId.get(id)!);
  return result;
}

function lastOf(next: Map<number | null, number | null>): number | null {
  let last: number | null = null;
  for (let id = next.get(null) ?? null; id !== null; id = next.get(id) ?? null) last = id;
  return last;
}
