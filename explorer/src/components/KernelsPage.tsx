// The kernels that the engine made, each with the nodes that it computes.
import { elsewhere, linkTo, useApp } from "../app";
import { count } from "../format";
import type { Graph, GraphNode, Kernel } from "../schema";
import { Nodes } from "./facts";
import { SourceLink } from "./links";
import { SourceView } from "./SourceView";

const SAYS: Record<Kernel["language"], string> = {
  triton: "made in Triton",
  cpp: "made in C++",
  extern: "a library call",
  aten: "an operator of PyTorch",
};

export function KernelsPage({ graph }: { graph: Graph }) {
  const app = useApp();
  const { kernels } = graph;
  const chosen = kernels[app.route.kernel ?? 0] ?? kernels[0];
  return (
    <article class="page fills">
      <header class="page-head">
        <h1>Kernels</h1>
        <p class="purpose">{summary(kernels)}</p>
      </header>
      {chosen && (
        <div class="kernels">
          <nav aria-label="Kernels">
            {["forward", "backward", "captured", "joint"].map((role) => {
              const own = kernels.map((kernel, index) => ({ kernel, index })).filter(({ kernel }) => kernel.role === role);
              return own.length ? <KernelList key={role} role={role} kernels={own} chosen={chosen} /> : null;
            })}
          </nav>
          <KernelView kernel={chosen} />
        </div>
      )}
    </article>
  );
}

function summary(kernels: Kernel[]): string {
  const made = kernels.filter((kernel) => kernel.code !== null).length;
  if (!made) return `${count(kernels.length, "operator")} of PyTorch and of libraries run one after the other; no kernel was generated.`;
  return `${count(kernels.length, "kernel")} run, of which ${made} were generated for this program; the others are library calls.`;
}

function KernelList({ role, kernels, chosen }: { role: string; kernels: { kernel: Kernel; index: number }[]; chosen: Kernel }) {
  const app = useApp();
  return (
    <section>
      <h2>{role}</h2>
      {kernels.map(({ kernel, index }) => (
        <a key={index} href={linkTo(app, elsewhere(app.route, { page: "kernels", kernel: index }))} aria-current={kernel === chosen ? "true" : undefined}>
          <code>{kernel.name}</code>
          <span class="aside">{count(kernel.nodes.length, "node")}</span>
        </a>
      ))}
    </section>
  );
}

function KernelView({ kernel }: { kernel: Kernel }) {
  const { book, provenance } = useApp();
  const nodes = kernel.nodes.map((id) => book.nodes.get(id)).filter((node) => node !== undefined) as GraphNode[];
  const lines = [...new Set(nodes.map((node) => provenance.source(node.id)).filter((line) => line !== null))];
  return (
    <section class="kernel" aria-label={kernel.name}>
      <h2>{kernel.name}</h2>
      <p class="aside">{`${SAYS[kernel.language]}, in the ${kernel.role}`}</p>
      <p>
        Computes <Nodes nodes={nodes} />
      </p>
      {lines.map((line) => (
        <SourceLink key={line} index={line} />
      ))}
      {kernel.code !== null && <SourceView code={kernel.code} language={kernel.language === "cpp" ? "cpp" : "python"} label={`Source of ${kernel.name}`} />}
    </section>
  );
}
