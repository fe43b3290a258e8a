// Where a node came from, and what became of it.
import type { Book, Run } from "./book";
import type { Graph, GraphNode, Kernel, Match } from "./schema";

export interface Change {
  run: Run;
  match: Match | null;
  what: "made" | "changed" | "removed";
}

export class Provenance {
  private readonly children = new Map<number, number[]>();
  private readonly changes = new Map<number, Change[]>();
  private readonly inKernel = new Map<number, Kernel[]>();
  private readonly ends = new Map<number, "forward" | "backward">();

  constructor(private readonly book: Book) {
    for (const node of book.nodes.values()) {
      for (const parent of node.from) if (parent !== node.id) push(this.children, parent, node.id);
    }
    for (const run of book.runs) this.readPass(run);
    for (const graph of book.report.graphs) this.readEnd(graph);
  }

  /** What the passes did to a node, in order. */
  changesOf(id: number): Change[] {
    return this.changes.get(id) ?? [];
  }

  /** The nodes that it came from, the nearest first. */
  ancestors(id: number): GraphNode[] {
    return this.walk(id, (each) => this.book.nodes.get(each)?.from ?? []);
  }

  /** The nodes that it became, the nearest first. */
  descendants(id: number): GraphNode[] {
    return this.walk(id, (each) => this.children.get(each) ?? []);
  }

  /** The line of the user's program: its own, or that of what it came from. */
  source(id: number): number | null {
    return this.inherited(id, (node) => node.source);
  }

  module(id: number): number | null {
    return this.inherited(id, (node) => node.module);
  }

  /** Whether it stands in a graph that the engine got: in which. */
  endsIn(id: number): "forward" | "backward" | null {
    return this.ends.get(id) ?? null;
  }

  /** What is left of it in the graphs that the engine got; itself, where it stayed. */
  finals(id: number): GraphNode[] {
    const all = [this.book.nodes.get(id)!, ...this.descendants(id)];
    return all.filter((node) => node && this.ends.has(node.id));
  }

  kernels(id: number): Kernel[] {
    return this.inKernel.get(id) ?? [];
  }

  /** What a removed node's users read instead, as its match says. */
  replacement(id: number): string | null {
    const removal = this.changesOf(id).find((change) => change.what === "removed");
    const name = this.book.nodes.get(id)?.name;
    const event = removal?.match?.events.find((each) => each.kind === "replaced" && each.node === name);
    return event?.detail || null;
  }

  private inherited(id: number, field: (node: GraphNode) => number | null): number | null {
    const own = this.book.nodes.get(id);
    const found = own && field(own);
    if (found !== null && found !== undefined) return found;
    return this.ancestors(id).map(field).find((each) => each !== null) ?? null;
  }

  private walk(id: number, step: (id: number) => number[]): GraphNode[] {
    const seen = new Set([id]);
    const queue = [id];
    const found: GraphNode[] = [];
    for (let at = 0; at < queue.length; at++) {
      for (const each of step(queue[at]!)) {
        if (seen.has(each)) continue;
        seen.add(each);
        queue.push(each);
        const node = this.book.nodes.get(each);
        if (node) found.push(node);
      }
    }
    return found;
  }

  private readPass(run: Run): void {
    const known = new Set<string>();
    const note = (id: number, match: Match | null, what: Change["what"]) => {
      // The pass as a whole repeats what its matches did.
      if (match === null && known.has(`${what}${id}`)) return;
      known.add(`${what}${id}`);
      push(this.changes, id, { run, match, what });
    };
    for (const match of [...run.pass.matches, null]) {
      const delta = match ? match.delta : run.pass.delta;
      delta?.added.forEach(({ node }) => note(node.id, match, "made"));
      delta?.changed.forEach((node) => note(node.id, match, "changed"));
      delta?.removed.forEach((id) => note(id, match, "removed"));
    }
  }

  private readEnd(graph: Graph): void {
    for (const stage of this.book.finalStages(graph)) {
      const role = stage.role === "backward" ? "backward" : "forward";
      for (const node of this.book.replay(stage).end()) this.ends.set(node.id, role);
    }
    for (const kernel of graph.kernels) kernel.nodes.forEach((id) => push(this.inKernel, id, kernel));
  }
}

function push<K, V>(map: Map<K, V[]>, key: K, value: V): void {
  const list = map.get(key);
  if (list) list.push(value);
  else map.set(key, [value]);
}
