// The report with what the page looks up all the time: passes by place, nodes by id, the graph at any pass.
import { Replay } from "./replay";
import type { Graph, GraphNode, PassRun, Report, Stage } from "./schema";

/** One run of a pass, and where it stands. */
export interface Run {
  graph: Graph;
  stage: Stage;
  index: number;
  pass: PassRun;
}

export class Book {
  readonly runs: Run[] = [];
  /** A node as it was last seen. */
  readonly nodes = new Map<number, GraphNode>();
  /** The stage in which a node was last seen. */
  readonly homes = new Map<number, { graph: Graph; stage: Stage }>();
  private readonly replays = new Map<Stage, Replay>();

  constructor(readonly report: Report) {
    for (const graph of report.graphs) {
      for (const stage of graph.stages) this.read(graph, stage);
    }
  }

  replay(stage: Stage): Replay {
    const known = this.replays.get(stage) ?? new Replay(stage);
    this.replays.set(stage, known);
    return known;
  }

  runsOf(stage: Stage): Run[] {
    return this.runs.filter((run) => run.stage === stage);
  }

  /** The graphs that the engine got: the last that is known of each role; of no roles, the last of all. */
  finalStages(graph: Graph): Stage[] {
    const shown = graph.stages.filter((stage) => stage.start.length);
    const ends = ["forward", "backward"].map((role) => shown.filter((stage) => stage.role === role).at(-1));
    const found = ends.filter((stage) => stage !== undefined);
    return found.length ? found : shown.slice(-1);
  }

  firstStage(graph: Graph): Stage | undefined {
    return graph.stages.find((stage) => stage.start.length);
  }

  private read(graph: Graph, stage: Stage): void {
    const see = (node: GraphNode) => {
      this.nodes.set(node.id, node);
      this.homes.set(node.id, { graph, stage });
    };
    stage.start.forEach(see);
    stage.passes.forEach((pass, index) => {
      this.runs.push({ graph, stage, index, pass });
      // A match may make a node that a later match takes away again: the pass as a whole does not know it.
      const deltas = [...pass.matches.map((match) => match.delta), pass.delta];
      for (const delta of deltas) {
        delta?.changed.forEach(see);
        delta?.added.forEach(({ node }) => see(node));
      }
    });
  }
}
