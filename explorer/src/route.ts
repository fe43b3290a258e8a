// The address of what is shown, as it stands behind "#": that of the pass or match, and what tells it from others.
import type { Book, Run } from "./book";
import type { Graph, Stage } from "./schema";

export type View = "changes" | "picture" | "before" | "after" | "misses";
export type Page = "overview" | "partition" | "kernels" | "stage" | "pass";

export interface Route {
  page: Page;
  graph: Graph;
  stage: Stage | null;
  run: Run | null;
  /** Index of the match that is shown alone. */
  match: number | null;
  view: View;
  /** An address that nothing stands at. */
  lost: string | null;
  node: number | null;
  source: number | null;
  module: number | null;
  /** Index of the kernel that is shown. */
  kernel: number | null;
}

const VIEWS: View[] = ["changes", "picture", "before", "after", "misses"];

export function parse(hash: string, book: Book): Route {
  const [path = "", query = ""] = decoded(hash.replace(/^#\/?/, "")).split("?", 2);
  const params = new URLSearchParams(query);
  const number = (name: string) => (/^\d+$/.test(params.get(name) ?? "") ? Number(params.get(name)) : null);
  const graph = book.report.graphs.find((each) => each.number === number("graph")) ?? book.report.graphs[0]!;
  const view = VIEWS.find((each) => each === params.get("view")) ?? "changes";
  const subject = { node: number("node"), source: number("source"), module: number("module"), kernel: number("kernel") };
  const route: Route = { page: "overview", graph, stage: null, run: null, match: null, view, lost: null, ...subject };
  if (path === "partition" || path === "kernels") return { ...route, page: path };
  const wanted = { graph: params.has("graph") ? graph : null, role: params.get("role"), run: number("run") ?? 1 };
  return passAt(path, wanted, book, route) ?? stageAt(path, wanted.role, graph, route) ?? { ...route, lost: path || null };
}

export function format(route: Route, book: Book): string {
  const params = new URLSearchParams();
  const several = book.report.graphs.length > 1;
  if (several && route.graph !== book.report.graphs[0]) params.set("graph", String(route.graph.number));
  const role = route.stage && roleIfNeeded(route.graph, route.stage);
  if (role) params.set("role", role);
  if (route.run) {
    const turn = turnOf(route.run, book);
    if (turn > 1) params.set("run", String(turn));
  }
  if (route.run && route.view !== "changes") params.set("view", route.view);
  for (const name of ["node", "source", "module", "kernel"] as const) {
    if (route[name] !== null) params.set(name, String(route[name]));
  }
  const query = params.size ? `?${params}` : "";
  return `#${pathOf(route)}${query}`;
}

function decoded(text: string): string {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

function pathOf({ page, stage, run, match }: Route): string {
  if (page === "pass") return match === null ? run!.pass.address : run!.pass.matches[match]!.address;
  if (page === "stage") return stage!.name;
  return page === "overview" ? "" : page;
}

interface Wanted {
  graph: Graph | null;
  role: string | null;
  run: number;
}

function passAt(path: string, wanted: Wanted, book: Book, route: Route): Route | null {
  const found = book.runs.filter(
    ({ graph, stage, pass }) =>
      (!wanted.graph || graph === wanted.graph) &&
      (!wanted.role || stage.role === wanted.role) &&
      (pass.address === path || pass.matches.some((match) => match.address === path)),
  );
  const run = found[wanted.run - 1] ?? found[0];
  if (!run) return null;
  const match = run.pass.matches.findIndex((each) => each.address === path);
  return { ...route, page: "pass", graph: run.graph, stage: run.stage, run, match: match < 0 ? null : match };
}

function stageAt(path: string, role: string | null, graph: Graph, route: Route): Route | null {
  const stage = graph.stages.find((each) => each.name === path && (!role || each.role === role));
  return stage ? { ...route, page: "stage", stage } : null;
}

function roleIfNeeded(graph: Graph, stage: Stage): string | null {
  const first = graph.stages.find((each) => each.name === stage.name);
  return first === stage ? null : stage.role;
}

/** A pass may run several times in a stage. */
function turnOf(run: Run, book: Book): number {
  const turns = book.runs.filter((each) => each.stage === run.stage && each.pass.address === run.pass.address);
  return turns.indexOf(run) + 1;
}
