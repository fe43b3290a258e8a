// A node: what it is, and its story.
import { useMemo } from "preact/hooks";
import { useApp, type App } from "../app";
import { bytes, stageTitle } from "../format";
import type { GraphNode } from "../schema";
import { Fact, Nodes } from "./facts";
import { Future, History, Left, Origin, Saved } from "./NodeStory";

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
