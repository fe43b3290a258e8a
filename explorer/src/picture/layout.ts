// Places boxes and edges with elk, in a worker, so that the page stays awake.
import ELK, { type ElkNode } from "elkjs/lib/elk-api";
import packed from "virtual:elk-worker";
import { unpack } from "../decode";
import { ROOT, type Box, type Drawing } from "./drawing";

export interface Placed {
  width: number;
  height: number;
  boxes: (Box & { x: number; y: number; width: number; height: number })[];
  edges: { path: string; kind: Drawing["edges"][number]["kind"] }[];
}

let elk: Promise<InstanceType<typeof ELK>> | null = null;

async function start(): Promise<InstanceType<typeof ELK>> {
  const url = URL.createObjectURL(new Blob([await unpack(packed)], { type: "text/javascript" }));
  return new ELK({ workerFactory: () => new Worker(url) });
}

const OPTIONS = {
  "elk.algorithm": "layered",
  "elk.layered.spacing.nodeNodeBetweenLayers": "34",
  "elk.spacing.nodeNode": "18",
  "elk.layered.considerModelOrder.strategy": "NODES_AND_EDGES",
  "elk.separateConnectedComponents": "true",
  "elk.aspectRatio": "2.2",
};

const TREE = {
  "elk.direction": "RIGHT",
  "elk.edgeRouting": "ORTHOGONAL",
  "elk.layered.mergeEdges": "true",
  "elk.spacing.nodeNode": "10",
  "elk.layered.spacing.nodeNodeBetweenLayers": "26",
};

export async function place(drawing: Drawing): Promise<Placed> {
  elk ??= start();
  const isTree = drawing.direction === "RIGHT";
  const widest = Math.max(...drawing.boxes.map(widthOf));
  const graph: ElkNode = {
    id: "root",
    layoutOptions: { ...OPTIONS, ...(isTree ? TREE : { "elk.direction": "DOWN" }) },
    children: drawing.boxes.map((box) => ({ id: box.id, width: isTree && box.id !== ROOT ? widest : widthOf(box), height: 44 })),
    edges: drawing.edges.map((edge, index) => ({ id: `e${index}`, sources: [edge.from], targets: [edge.to] })),
  };
  const done = await (await elk).layout(graph);
  const boxes = new Map(drawing.boxes.map((box) => [box.id, box]));
  return {
    width: done.width ?? 0,
    height: done.height ?? 0,
    boxes: (done.children ?? []).map((each) => ({ ...boxes.get(each.id)!, x: each.x ?? 0, y: each.y ?? 0, width: each.width ?? 0, height: each.height ?? 0 })),
    edges: (done.edges ?? []).map((each, index) => ({ path: pathOf(each.sections ?? []), kind: drawing.edges[index]!.kind })),
  };
}

function widthOf({ title, text }: Box): number {
  return Math.max(90, 22 + Math.max(title.length * 7.6, text.length * 6.6));
}

interface Section {
  startPoint: { x: number; y: number };
  endPoint: { x: number; y: number };
  bendPoints?: { x: number; y: number }[];
}

function pathOf(sections: Section[]): string {
  return sections
    .map(({ startPoint, bendPoints = [], endPoint }) => "M" + [startPoint, ...bendPoints, endPoint].map(({ x, y }) => `${x} ${y}`).join("L"))
    .join("");
}
