// Facts by name, and lists of nodes and kernels that are not longer than somebody reads.
import type { ComponentChildren } from "preact";
import { elsewhere, linkTo, useApp } from "../app";
import type { GraphNode, Kernel } from "../schema";
import { NodeLink } from "./links";

export const LISTED = 12;

export function Fact({ name, children }: { name: string; children: ComponentChildren }) {
  if (children === null || children === undefined) return null;
  return (
    <div>
      <dt>{name}</dt>
      <dd>{children}</dd>
    </div>
  );
}

export function Nodes({ nodes }: { nodes: GraphNode[] }) {
  return (
    <span class="node-links">
      {nodes.slice(0, LISTED).map((node) => (
        <NodeLink key={node.id} node={node} />
      ))}
      {nodes.length > LISTED && <span class="aside">{`and ${nodes.length - LISTED} more`}</span>}
    </span>
  );
}

export function Kernels({ kernels }: { kernels: Kernel[] }) {
  const app = useApp();
  return (
    <span class="node-links">
      {kernels.slice(0, LISTED).map((kernel) => {
        const graph = app.book.report.graphs.find((each) => each.kernels.includes(kernel))!;
        const index = graph.kernels.indexOf(kernel);
        return (
          <a key={index} class="code-link" href={linkTo(app, elsewhere(app.route, { page: "kernels", graph, kernel: index }))}>
            {kernel.name}
          </a>
        );
      })}
      {kernels.length > LISTED && <span class="aside">{`and ${kernels.length - LISTED} more`}</span>}
    </span>
  );
}
