// A node: what it is, where it came from, what became of it.
import type { ComponentChildren } from "preact";
import { useMemo } from "preact/hooks";
import { elsewhere, linkTo, useApp, type App } from "../app";
import { bytes, stageTitle } from "../format";
import type { Change } from "../provenance";
import type { GraphNode, Kernel } from "../schema";
import { ModuleLink, NodeLink, PassLink, SourceLink } from "./links";

const LISTED = 12;

export function NodeDetails({ id }: { id: number }) {
  const app = useApp();
  const [node, around] = useMemo(() => find(app, id), [app.book, app.route.run, app.route.stage, id]);
  if (!node) return <p class="quiet">{`This report has no node ${id}.`}</p>;
  const home = app.book.homes.get(id)!;
  const byId = new Map(around.map((each) => [each.id, each]));
  const inputs = node.inputs.map((input) => byId.get(input) ?? app.book.nodes.get(input)).filter((each) => each !== undefined);
  const users = around.filter((each) => each.inputs.includes(id));
  const list = (shape: string[] | null) => (shape ? `[${shape.join(", ")}]` : null);
  return (
    <div class="details" data-node-details={id}>
      <p class="crumbs">{`Node in ${stageTitle(home.stage.name, home.stage.role)}`}</p>
      <h2>{node.name}</h2>
      <pre class="one-line">{node.code}</pre>
      <dl class="facts-list">
        <Fact name="Shape">{list(node.shape) ?? (node.shape ? null : node.value)}</Fact>
        <Fact name="Dtype">{node.dtype}</Fact>
        <Fact name="Strides">{list(node.stride)}</Fact>
        <Fact name="Memory">{node.bytes === null ? null : bytes(node.bytes)}</Fact>
        <Fact name="Device">{node.device}</Fact>
        <Fact name="Operator">{node.op === "call_function" || node.op === "call_method" ? <code>{node.target}</code> : node.op}</Fact>
      </dl>
      <Origin node={node} />
      <Future node={node} />
      <History changes={app.provenance.changesOf(id)} />
      <Left node={node} />
      <Saved id={id} />
      <NodeList title="Reads" nodes={inputs} />
      <NodeList title="Read by" nodes={users} />
    </div>
  );
}

/** The node as the graph on the screen has it, and that graph; else as it was last seen. */
function find(app: App, id: number): [GraphNode | undefined, GraphNode[]] {
  const { book, route } = app;
  const home = book.homes.get(id);
  const graphs: GraphNode[][] = [];
  if (route.run) graphs.push(book.replay(route.run.stage).after(route.run.index), book.replay(route.run.stage).before(route.run.index));
  if (home) graphs.push(book.replay(home.stage).end(), home.stage.start);
  for (const graph of graphs) {
    const node = graph.find((each) => each.id === id);
    if (node) return [node, graph];
  }
  return [book.nodes.get(id), []];
}

export function Fact({ name, children }: { name: string; children: ComponentChildren }) {
  if (children === null || children === undefined) return null;
  return (
    <div>
      <dt>{name}</dt>
      <dd>{children}</dd>
    </div>
  );
}

function Origin({ node }: { node: GraphNode }) {
  const { provenance, book } = useApp();
  const source = provenance.source(node.id);
  const module = provenance.module(node.id);
  const parents = node.from.map((id) => book.nodes.get(id)).filter((each) => each !== undefined && each.id !== node.id) as GraphNode[];
  const made = provenance.changesOf(node.id).find((change) => change.what === "made");
  return (
    <section>
      <h3>Where it came from</h3>
      {source !== null && <SourceLink index={source} />}
      <dl class="facts-list">
        <Fact name="Module">{module === null ? null : <ModuleLink index={module} />}</Fact>
        <Fact name="Made by">{made ? <ChangeLink change={made} /> : (node.made?.match ?? node.made?.pass ?? null)}</Fact>
        <Fact name="Came from">{parents.length ? <Nodes nodes={parents} /> : null}</Fact>
      </dl>
      {source === null && !made && !node.made && <p class="quiet">It stands for an input or a result, not for a line of the program.</p>}
    </section>
  );
}

function Future({ node }: { node: GraphNode }) {
  const { provenance } = useApp();
  const finals = provenance.finals(node.id);
  const others = finals.filter((each) => each.id !== node.id);
  const removal = provenance.changesOf(node.id).find((change) => change.what === "removed");
  const replacement = provenance.replacement(node.id);
  const direct = provenance.descendants(node.id).slice(0, LISTED);
  const role = (name: "forward" | "backward") => others.filter((each) => provenance.endsIn(each.id) === name);
  const kernels = [...new Set(finals.flatMap((each) => provenance.kernels(each.id)))];
  return (
    <section>
      <h3>What became of it</h3>
      {removal && (
        <p>
          Removed by <ChangeLink change={removal} />
          {replacement && `, replaced ${replacement}`}.
        </p>
      )}
      {provenance.endsIn(node.id) && <p>It stayed: the engine got it like this.</p>}
      <dl class="facts-list">
        <Fact name="Forward">{role("forward").length ? <Nodes nodes={role("forward")} /> : null}</Fact>
        <Fact name="Backward">{role("backward").length ? <Nodes nodes={role("backward")} /> : null}</Fact>
        <Fact name="Became">{!others.length && direct.length ? <Nodes nodes={direct} /> : null}</Fact>
        <Fact name="Kernels">{kernels.length ? <Kernels kernels={kernels} /> : null}</Fact>
      </dl>
      {!removal && !finals.length && !direct.length && <p class="quiet">Nothing in the final graphs comes from it.</p>}
    </section>
  );
}

function History({ changes }: { changes: Change[] }) {
  const shown = changes.filter((change) => change.what === "changed");
  if (!shown.length) return null;
  return (
    <section>
      <h3>Changed by</h3>
      <ul class="plain">
        {shown.slice(0, LISTED).map((change, index) => (
          <li key={index}>
            <ChangeLink change={change} />
          </li>
        ))}
      </ul>
    </section>
  );
}

/** Passes that looked at the node and left it as it was. */
function Left({ node }: { node: GraphNode }) {
  const { book } = useApp();
  const home = book.homes.get(node.id)!;
  const left = book.runsOf(home.stage).flatMap((run) => {
    const reject = run.pass.rejects.find((each) => each.nodes.includes(node.name));
    return reject ? [{ run, reason: reject.reason }] : [];
  });
  if (!left.length) return null;
  return (
    <section>
      <h3>Looked at, and left, by</h3>
      <ul class="plain">
        {left.slice(0, LISTED).map(({ run, reason }) => (
          <li key={run.index}>
            <PassLink run={run}>{run.pass.name}</PassLink> <span class="aside">{reason}</span>
          </li>
        ))}
      </ul>
    </section>
  );
}

function ChangeLink({ change: { run, match } }: { change: Change }) {
  return <PassLink run={run} match={match ? run.pass.matches.indexOf(match) : null} />;
}

function Saved({ id }: { id: number }) {
  const { book, provenance } = useApp();
  const ids = new Set([id, ...provenance.ancestors(id).map((node) => node.id)]);
  for (const { partition } of book.report.graphs) {
    const saved = partition?.saved.find((value) => value.node !== null && ids.has(value.node));
    const again = partition?.again.find((value) => value.node !== null && ids.has(value.node));
    const value = saved ?? again;
    if (value) {
      return (
        <section>
          <h3>{saved ? "Saved for backward" : "Computed again in backward"}</h3>
          <p>{`${value.bytes ? `${bytes(value.bytes)}; ` : ""}${value.reason}.`}</p>
        </section>
      );
    }
  }
  return null;
}

function NodeList({ title, nodes }: { title: string; nodes: GraphNode[] }) {
  if (!nodes.length) return null;
  return (
    <section>
      <h3>{title}</h3>
      <p>
        <Nodes nodes={nodes} />
      </p>
    </section>
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
