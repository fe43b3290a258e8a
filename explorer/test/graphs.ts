// Small graphs for tests.
import type { Delta, Graph, GraphNode, PassRun, Report, Stage } from "../src/schema";

export function node(id: number, code: string, fields: Partial<GraphNode> = {}): GraphNode {
  const [name = "", call = ""] = code.split(" = ");
  return {
    id, name, code, op: "call_function", target: call.split("(")[0]!, inputs: [], value: "f32[2]", shape: ["2"], dtype: "float32",
    stride: ["1"], device: "cpu", bytes: 8, source: null, module: null, made: null, from: [], ...fields,
  };
}

export function delta(parts: Partial<Delta>): Delta {
  return { removed: [], changed: [], added: [], moved: [], ...parts };
}

export function pass(address: string, fields: Partial<PassRun> = {}): PassRun {
  return {
    address, name: address.split("/")[1]!, purpose: "", place: "", status: "changed", reason: null, seconds: 0, nodes_before: 0,
    nodes_after: 0, verified: null, rule: null, matches: [], rejects: [], delta: null, ...fields,
  };
}

export function stage(name: string, role: string, start: GraphNode[], passes: PassRun[] = []): Stage {
  return { key: `1/${name}/${role}`, name, role, seconds: 0, failure: null, facts: {}, start, result: start.length, passes };
}

export function report(stages: Stage[], fields: Partial<Report> = {}): Report {
  const graph: Graph = {
    number: 1, function: "f", kind: "first", description: "f", source: null, compile_id: "0/0", stages, partition: null, kernels: [],
  };
  return {
    schema: "eductor.report/1", eductor: "0", torch: "0", title: "f", created: "", seconds: 0, warnings: [], sources: [], modules: [],
    rules: [], graphs: [graph], ...fields,
  };
}

export const ids = (nodes: GraphNode[]) => nodes.map((each) => each.id);
