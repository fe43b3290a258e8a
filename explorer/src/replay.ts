// The graph of a stage at any of its passes and matches; each is computed once.
import { applyDelta } from "./delta";
import type { GraphNode, Match, Stage } from "./schema";

export class Replay {
  private readonly states: GraphNode[][];

  constructor(readonly stage: Stage) {
    this.states = [stage.start];
  }

  before(pass: number): GraphNode[] {
    for (let i = this.states.length; i <= pass; i++) {
      const [state, delta] = [this.states[i - 1]!, this.stage.passes[i - 1]!.delta];
      this.states.push(delta ? applyDelta(state, delta) : state);
    }
    return this.states[pass]!;
  }

  after(pass: number): GraphNode[] {
    return this.before(pass + 1);
  }

  end(): GraphNode[] {
    return this.before(this.stage.passes.length);
  }

  /** The graph on both sides of one match; null where it is only known what the whole pass did. */
  aroundMatch(pass: number, match: number): [GraphNode[], GraphNode[]] | null {
    const matches = this.stage.passes[pass]!.matches;
    if (matches.slice(0, match + 1).some((each) => !each.delta)) return null;
    const step = (state: GraphNode[], each: Match) => applyDelta(state, each.delta!);
    const before = matches.slice(0, match).reduce(step, this.before(pass));
    return [before, step(before, matches[match]!)];
  }
}
