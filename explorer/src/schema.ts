// The data of a report, as src/eductor/observe/report writes it.

export interface Report {
  schema: string;
  eductor: string;
  torch: string;
  title: string;
  created: string;
  seconds: number;
  warnings: { graph: number | null; text: string }[];
  sources: SourceLine[];
  modules: ModuleInfo[];
  rules: Rule[];
  graphs: Graph[];
}

export interface SourceLine {
  file: string;
  line: number;
  code: string;
}

export interface ModuleInfo {
  path: string;
  kind: string;
}

export interface Rule {
  name: string;
  file: string;
  line: number;
  code: string;
}

export interface Graph {
  number: number;
  function: string;
  kind: string;
  description: string;
  source: string | null;
  compile_id: string;
  stages: Stage[];
  partition: Partition | null;
  kernels: Kernel[];
}

export interface Stage {
  key: string;
  name: string;
  role: string;
  seconds: number;
  failure: string | null;
  facts: Record<string, unknown>;
  start: GraphNode[];
  result: number | null;
  passes: PassRun[];
}

export interface GraphNode {
  id: number;
  name: string;
  op: string;
  target: string;
  code: string;
  inputs: number[];
  value: string | null;
  shape: string[] | null;
  dtype: string | null;
  stride: string[] | null;
  device: string | null;
  bytes: number | null;
  source: number | null;
  module: number | null;
  made: { pass: string; match: string | null } | null;
  from: number[];
}

export interface PassRun {
  address: string;
  name: string;
  purpose: string;
  place: string;
  status: "changed" | "unchanged" | "skipped" | "failed";
  reason: string | null;
  seconds: number;
  nodes_before: number;
  nodes_after: number;
  verified: { ok: boolean; text: string } | null;
  rule: number | null;
  matches: Match[];
  rejects: Reject[];
  delta: Delta | null;
}

export interface Reject {
  rule: string | null;
  nodes: string[];
  reason: string;
}

export interface Match {
  address: string;
  rule: string | null;
  source: number | null;
  node: string;
  note: string | null;
  events: { kind: string; node: string; detail: string }[];
  delta: Delta | null;
}

/** Applied in the order of its fields. */
export interface Delta {
  removed: number[];
  changed: GraphNode[];
  added: { after: number | null; node: GraphNode }[];
  moved: { id: number; after: number | null }[];
}

export interface Partition {
  budget: number | Record<string, number>;
  peak: number | null;
  saved: Value[];
  again: Value[];
  others: Value[];
  curve: { points: Point[]; chosen: Point } | null;
  timeline: Moment[];
}

export interface Moment {
  phase: "forward" | "backward";
  node: number | null;
  name: string;
  live: number;
}

export interface Value {
  name: string;
  node: number | null;
  bytes: number;
  seconds: number;
  instead: number | null;
  reason: string;
  ahead: boolean;
}

export interface Point {
  budget: number;
  bytes: number;
  seconds: number;
  peak: number;
}

export interface Kernel {
  name: string;
  role: string;
  language: "triton" | "cpp" | "extern" | "aten";
  code: string | null;
  nodes: number[];
}
