// Links to passes, nodes, lines and modules: the address of each is the page's own.
import type { ComponentChildren } from "preact";
import { beside, elsewhere, linkTo, useApp } from "../app";
import type { Run } from "../book";
import { fileName } from "../format";
import type { GraphNode } from "../schema";

export function NodeLink({ node, children }: { node: GraphNode; children?: ComponentChildren }) {
  const app = useApp();
  const chosen = app.route.node === node.id;
  return (
    <a class="code-link" href={linkTo(app, beside(app.route, { node: node.id }))} aria-current={chosen || undefined} title={node.code}>
      {children ?? node.name}
    </a>
  );
}

export function PassLink({ run, match = null, children }: { run: Run; match?: number | null; children?: ComponentChildren }) {
  const app = useApp();
  const { node, source, module } = app.route;
  const { graph, stage, pass } = run;
  const there = elsewhere(app.route, { page: "pass", graph, stage, run, match, node, source, module });
  return (
    <a class="code-link" href={linkTo(app, there)} title={pass.purpose}>
      {children ?? (match === null ? pass.address : pass.matches[match]!.address)}
    </a>
  );
}

export function SourceLink({ index }: { index: number }) {
  const app = useApp();
  const line = app.book.report.sources[index]!;
  return (
    <a class="source-link" href={linkTo(app, beside(app.route, { source: index }))} title={`${line.file}:${line.line}`}>
      <span class="place">{`${fileName(line.file)}:${line.line}`}</span>
      <code>{line.code.trim()}</code>
    </a>
  );
}

export function ModuleLink({ index }: { index: number }) {
  const app = useApp();
  const { path, kind } = app.book.report.modules[index]!;
  return (
    <a class="code-link" href={linkTo(app, beside(app.route, { module: index }))} aria-current={app.route.module === index || undefined}>
      {path || kind}
    </a>
  );
}
