import { useMemo } from "preact/hooks";
import { useApp } from "../app";
import { fatesOf } from "../fates";
import { bytes } from "../format";
import { PassLink, SourceLink } from "./links";
import { Traces } from "./SourceDetails";

/** A module: its lines, what runs in its place, what is saved for it, which passes touched it. */
export function ModuleDetails({ index }: { index: number }) {
  const { book, provenance, route } = useApp();
  const info = book.report.modules[index];
  const alike = useMemo(() => sameModules(book.report.modules, index), [book, index]);
  const fates = useMemo(() => fatesOf(book, provenance, route.graph), [book, provenance, route.graph]);
  if (!info) return <p class="quiet">{`This report has no module ${index}.`}</p>;
  const runs = [...new Set(fates.filter((fate) => fate.modules.some((each) => alike.has(each))).flatMap((fate) => fate.passes))];
  const first = book.firstStage(route.graph)?.start ?? [];
  const lines = [...new Set(first.filter((node) => node.module !== null && alike.has(node.module)).flatMap((node) => node.source ?? []))];
  const saved = (route.graph.partition?.saved ?? []).filter((value) => value.bytes > 0 && value.node !== null && alike.has(provenance.module(value.node) ?? -1));
  return (
    <div class="details">
      <p class="crumbs">{info.kind}</p>
      <h2>{info.path || info.kind}</h2>
      {lines.map((line) => (
        <SourceLink key={line} index={line} />
      ))}
      <Traces owns={(node, inherited) => alike.has(node.module ?? inherited("module") ?? -1)} />
      {saved.length > 0 && (
        <section>
          <h3>Saved for backward</h3>
          <ul class="plain">
            {saved.map((value) => (
              <li key={value.name}>
                <code>{value.name}</code> <span class="aside">{`${bytes(value.bytes)}, ${value.reason}`}</span>
              </li>
            ))}
          </ul>
        </section>
      )}
      <section>
        <h3>Touched by</h3>
        {runs.length ? (
          <ul class="plain">
            {runs.map((run) => (
              <li key={`${run.stage.key}${run.index}`}>
                <PassLink run={run} />
              </li>
            ))}
          </ul>
        ) : (
          <p class="quiet">No pass touched it.</p>
        )}
      </section>
    </div>
  );
}

/** A module may be listed several times under one path. */
function sameModules(modules: { path: string }[], index: number): Set<number> {
  const path = modules[index]?.path;
  return new Set(modules.flatMap((each, at) => (each.path === path ? [at] : [])));
}
