// Steps through the matches of a pass: where, by which rule, why, and what the rule is.
import { useApp, visit } from "../app";
import type { Run } from "../book";
import { RuleSource } from "./RuleSource";

export function MatchBar({ run, whole }: { run: Run; whole: boolean }) {
  const app = useApp();
  const { matches } = run.pass;
  const at = app.route.match;
  const show = (match: number | null) => visit(app, { ...app.route, match });
  const match = at === null ? null : matches[at]!;
  return (
    <section class="matches" aria-label="Matches">
      <div class="stepper">
        <button type="button" aria-pressed={at === null} class="whole" onClick={() => show(null)}>
          {matches.length === 1 ? "Whole pass" : `All ${matches.length} matches`}
        </button>
        <button type="button" aria-label="Previous match" title="Previous match (p)" disabled={at === null} onClick={() => show(at === 0 ? null : at! - 1)}>
          ‹
        </button>
        <span class="where" aria-live="polite">{at === null ? "step through" : `${at + 1} of ${matches.length}`}</span>
        <button type="button" aria-label="Next match" title="Next match (n)" disabled={at === matches.length - 1} onClick={() => show(at === null ? 0 : at + 1)}>
          ›
        </button>
        {match ? <code class="match-address">{match.address}</code> : <RuleCounts run={run} show={show} />}
      </div>
      {match && (
        <div class="match">
          <p>
            {match.rule && <b>{match.rule}</b>} {match.rule ? "at" : "At"} <code>{match.node}</code>
            {match.note && `: ${match.note}`}
          </p>
          {match.events.length > 0 && (
            <ul class="events">
              {match.events.slice(0, 8).map((event, index) => (
                <li key={index}>
                  <span class={`event ${event.kind}`}>{event.kind}</span> <code>{event.node}</code> {event.detail}
                </li>
              ))}
              {match.events.length > 8 && <li>{`and ${match.events.length - 8} more`}</li>}
            </ul>
          )}
          {whole && <p class="quiet">What this match did alone was not recorded; below is what the whole pass did.</p>}
          {match.source !== null && <RuleSource index={match.source} title="Source of the rule" atOnce />}
        </div>
      )}
    </section>
  );
}

/** How often each rule fired; a click goes to the first time. */
function RuleCounts({ run, show }: { run: Run; show: (match: number) => void }) {
  const counts = new Map<string, { first: number; times: number }>();
  run.pass.matches.forEach(({ rule }, index) => {
    if (!rule) return;
    const known = counts.get(rule) ?? { first: index, times: 0 };
    counts.set(rule, { ...known, times: known.times + 1 });
  });
  return (
    <span class="rules">
      {[...counts].map(([rule, { first, times }]) => (
        <button key={rule} type="button" class="chip" onClick={() => show(first)}>
          {rule} <b>{`×${times}`}</b>
        </button>
      ))}
    </span>
  );
}
