import { useApp } from "../app";
import type { Run } from "../book";
import { count } from "../format";
import type { GraphNode } from "../schema";
import { NodeLink } from "./links";

const LISTED = 12;

/** What the pass looked at and left, by reason: the commonest first. */
export function Misses({ run }: { run: Run }) {
  const { book } = useApp();
  const byName = new Map(book.replay(run.stage).before(run.index).map((node) => [node.name, node]));
  const groups = new Map<string, { rule: string | null; reason: string; places: string[][] }>();
  for (const { rule, reason, nodes } of run.pass.rejects) {
    const key = `${rule ?? ""}\0${reason}`;
    const group = groups.get(key) ?? { rule, reason, places: [] };
    groups.set(key, { ...group, places: [...group.places, nodes] });
  }
  const sorted = [...groups.values()].sort((a, b) => b.places.length - a.places.length);
  return (
    <ul>
      {sorted.map(({ rule, reason, places }) => (
        <li key={`${rule}${reason}`}>
          <p>
            {rule && <code class="rule">{rule}</code>} {reason} <span class="aside">{places.length > 1 && count(places.length, "time")}</span>
          </p>
          <p class="nodes">
            {places.slice(0, LISTED).map((names, index) => (
              <Names key={index} names={names} byName={byName} />
            ))}
            {places.length > LISTED && <span class="aside">{`and ${places.length - LISTED} more`}</span>}
          </p>
        </li>
      ))}
    </ul>
  );
}

function Names({ names, byName }: { names: string[]; byName: Map<string, GraphNode> }) {
  return (
    <>
      {names.map((name) => {
        const node = byName.get(name);
        return node ? <NodeLink key={name} node={node} /> : <code key={name}>{name}</code>;
      })}
    </>
  );
}
