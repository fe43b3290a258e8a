// The graph of a stage at any of its passes and matches; each is computed once.
import { applyDelta } from "./delta";
import type { Delta, GraphNode, Stage } from "./schema";

export class Replay {
  private readonly states: GraphNode[][];
  private readonly steps = new Map<number, GraphNode[][]>();

  constructor(readonly stage: Stage) {
    this.states = [stage.start];
  }

  before(pass: number): GraphNode[] {
    return at(pass, this.states, (index) => this.stage.passes[index]!.delta);
  }

  after(pass: number): GraphNode[] {
    return this.before(pass + 1);
  }

  end(): GraphNode[] {
    return this.before(this.stage.passes.length);
  }

  /** The graph on both sides of one match; null where it is only known what the whole pass did. */
  aroundMatch(pass: number, match: number): [GraphNode[], GraphNode[]] | null {
    const { matches } = this.stage.passes[pass]!;
    if (matches.slice(0, match + 1).some((each) => !each.delta)) return null;
    const states = this.steps.get(pass) ?? [this.before(pass)];
    this.steps.set(pass, states);
    const after = at(match + 1, states, (index) => matches[index]!.delta);
    return [states[match]!, after];
  }
}

/** The state at an index; those before it are computed on the way. */
function at(index: number, states: GraphNode[][], deltaBehind: (index: number) => Delta | null): GraphNode[] {
  for (let i = states.length; i <= index; i++) {
    const delta = deltaBehind(i - 1);
    states.push(delta ? applyDelta(states[i - 1]!, delta) : states[i - 1]!);
  }
  return states[index]!;
}
