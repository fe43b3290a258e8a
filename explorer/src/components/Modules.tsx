// What happened to each module, those that went the same way in one row.
import { Fragment } from "preact";
import { useMemo, useState } from "preact/hooks";
import { beside, linkTo, useApp } from "../app";
import { fatesOf, type Fate } from "../fates";
import type { Graph } from "../schema";
import { PassLink } from "./links";

export function Modules({ graph }: { graph: Graph }) {
  const { book, provenance } = useApp();
  const fates = useMemo(() => fatesOf(book, provenance, graph), [book, provenance, graph]);
  const kinds = useMemo(() => kindsOf(fates), [fates]);
  const [kind, setKind] = useState<string | null>(null);
  if (!fates.length) return null;
  const trained = book.finalStages(graph).some((stage) => stage.role === "backward");
  const shown = kinds.filter(([name]) => kind === null || name === kind);
  return (
    <section aria-labelledby="modules">
      <h2 id="modules">What happened to each module</h2>
      <div class="chips" role="group" aria-label="Kinds of modules">
        <button type="button" class="chip" aria-pressed={kind === null} onClick={() => setKind(null)}>
          All
        </button>
        {kinds.map(([name, total]) => (
          <button key={name} type="button" class="chip" aria-pressed={kind === name} onClick={() => setKind(name)}>
            {name} <b>{total}</b>
          </button>
        ))}
      </div>
      <table class="fates">
        <thead>
          <tr>
            <th>Module</th>
            <th>Captured as</th>
            <th>Forward runs</th>
            {trained && <th>Backward runs</th>}
            <th class="changed-by">Changed by</th>
          </tr>
        </thead>
        {shown.map(([name, total]) => (
          <tbody key={name}>
            <tr class="kind">
              <th colSpan={trained ? 5 : 4} scope="rowgroup">
                {name} <span class="aside">{total > 1 ? `${total} modules` : ""}</span>
              </th>
            </tr>
            {fates.filter((fate) => fate.kind === name).map((fate) => (
              <FateRow key={fate.modules[0]} fate={fate} trained={trained} />
            ))}
          </tbody>
        ))}
      </table>
    </section>
  );
}

function kindsOf(fates: Fate[]): [string, number][] {
  const totals = new Map<string, number>();
  for (const fate of fates) totals.set(fate.kind, (totals.get(fate.kind) ?? 0) + fate.modules.length);
  return [...totals].sort((a, b) => b[1] - a[1]);
}

function FateRow({ fate, trained }: { fate: Fate; trained: boolean }) {
  const app = useApp();
  const names = [...new Map(fate.passes.map((run) => [run.pass.address, run])).values()];
  return (
    <tr>
      <td>
        <a class="code-link" href={linkTo(app, beside(app.route, { module: fate.modules[0]! }))} aria-current={app.route.module === fate.modules[0] || undefined}>
          <Breakable text={fate.label || fate.kind} />
        </a>
        {fate.modules.length > 1 && <span class="aside">{` ×${fate.modules.length}, all alike`}</span>}
      </td>
      <td>
        <Operators names={fate.captured} />
      </td>
      <td>
        <Operators names={fate.forward} />
      </td>
      {trained && (
        <td>
          <Operators names={fate.backward} />
        </td>
      )}
      <td class="touched">
        {names.length ? names.map((run) => <PassLink key={run.pass.address} run={run}>
                <Breakable text={run.pass.name} />
              </PassLink>) : <span class="aside">no pass</span>}
      </td>
    </tr>
  );
}

const FEW = 5;

function Operators({ names }: { names: string[] }) {
  if (!names.length) return <span class="aside">nothing</span>;
  const more = names.length > FEW ? `, and ${names.length - FEW} more` : "";
  return (
    <code title={names.join(", ")}>
      <Breakable text={names.slice(0, FEW).join(", ") + more} />
    </code>
  );
}

/** A long name may go on in the next line behind an underscore or a dot. */
function Breakable({ text }: { text: string }) {
  const parts = text.split(/(?<=[_.])/);
  return (
    <>
      {parts.map((part, index) => (
        <Fragment key={index}>
          {part}
          <wbr />
        </Fragment>
      ))}
    </>
  );
}
