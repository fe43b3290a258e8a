import type { RefObject } from "preact";
import { useMemo } from "preact/hooks";
import { beside, elsewhere, linkTo, useApp } from "../app";
import { fileName, stageTitle } from "../format";
import { search } from "../search";

/** What was found, as links; arrow keys walk through them. */
export function SearchResults({ query, box, close }: { query: string; box: RefObject<HTMLInputElement | null>; close: () => void }) {
  const app = useApp();
  const { book, route } = app;
  const found = useMemo(() => search(book, query), [book, query]);
  const nothing = !found.passes.length && !found.nodes.length && !found.sources.length;
  const walk = (event: KeyboardEvent & { currentTarget: HTMLElement }) => {
    if (event.key === "Escape") {
      close();
      box.current?.focus();
    }
    if (event.key !== "ArrowDown" && event.key !== "ArrowUp") return;
    event.preventDefault();
    const links = [...event.currentTarget.querySelectorAll<HTMLAnchorElement>("a")];
    const next = links.indexOf(document.activeElement as HTMLAnchorElement) + (event.key === "ArrowDown" ? 1 : -1);
    (links[next] ?? box.current)?.focus();
  };
  return (
    <div class="results" role="region" aria-label="Found" aria-live="polite" onKeyDown={walk}>
      {nothing && <p class="quiet">Nothing has this name.</p>}
      {found.passes.length > 0 && <h3>Passes</h3>}
      {found.passes.map((run) => {
        const { graph, stage, pass } = run;
        return (
          <a key={`${stage.key}${run.index}`} href={linkTo(app, elsewhere(route, { page: "pass", graph, stage, run }))} title={pass.purpose}>
            <code>{pass.name}</code>
            <span class="aside">{`${stageTitle(stage.name, stage.role)}${pass.status === "unchanged" ? "" : `, ${pass.status}`}`}</span>
          </a>
        );
      })}
      {found.sources.length > 0 && <h3>Source lines</h3>}
      {found.sources.map(({ index, line }) => (
        <a key={index} href={linkTo(app, beside(route, { source: index }))} title={`${line.file}:${line.line}`}>
          <code>{line.code.trim()}</code>
          <span class="aside">{`${fileName(line.file)}:${line.line}`}</span>
        </a>
      ))}
      {found.nodes.length > 0 && <h3>Nodes</h3>}
      {found.nodes.map((node) => {
        const home = book.homes.get(node.id)!;
        return (
          <a key={node.id} href={linkTo(app, beside(route, { node: node.id }))} title={node.code}>
            <code>{node.name}</code>
            <span class="aside">{stageTitle(home.stage.name, home.stage.role)}</span>
          </a>
        );
      })}
      {found.more > 0 && <p class="quiet">{`and ${found.more} more nodes`}</p>}
    </div>
  );
}
