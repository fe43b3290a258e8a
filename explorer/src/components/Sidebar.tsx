// The way through the report: search, then graphs, stages and passes.
import type { RefObject } from "preact";
import { useState } from "preact/hooks";
import { elsewhere, linkTo, useApp } from "../app";
import type { Graph } from "../schema";
import type { Theme } from "../theme";
import { SearchResults } from "./SearchResults";
import { StageEntry } from "./StageEntry";

interface Props {
  searchBox: RefObject<HTMLInputElement | null>;
  setChangedOnly: (only: boolean) => void;
  theme: Theme;
  setTheme: (theme: Theme) => void;
  openHelp: () => void;
}

export function Sidebar({ searchBox, setChangedOnly, theme, setTheme, openHelp }: Props) {
  const app = useApp();
  const [query, setQuery] = useState("");
  const { report } = app.book;
  const other: Theme = theme === "dark" ? "light" : "dark";
  return (
    <aside class="sidebar">
      <header>
        <a class="brand" href={linkTo(app, elsewhere(app.route, { page: "overview" }))}>
          <Mark />
          <span class="title">{report.title}</span>
        </a>
        <button type="button" class="icon" onClick={() => setTheme(other)} aria-label={`Use ${other} colours`} title={`Use ${other} colours (d)`}>
          {theme === "dark" ? "☀" : "☾"}
        </button>
        <button type="button" class="icon" onClick={openHelp} aria-label="Keys" title="Keys (?)">
          ?
        </button>
      </header>
      <SearchField box={searchBox} query={query} setQuery={setQuery} />
      {query.trim() ? (
        <SearchResults query={query} box={searchBox} close={() => setQuery("")} />
      ) : (
        <>
          <label class="switch">
            <input type="checkbox" role="switch" checked={app.changedOnly} onChange={(e) => setChangedOnly(e.currentTarget.checked)} />
            Changed only
          </label>
          <nav aria-label="Stages and passes">
            {report.graphs.map((graph) => (
              <GraphEntry key={graph.number} graph={graph} several={report.graphs.length > 1} />
            ))}
          </nav>
        </>
      )}
    </aside>
  );
}

function SearchField({ box, query, setQuery }: { box: RefObject<HTMLInputElement | null>; query: string; setQuery: (query: string) => void }) {
  return (
    <input
      ref={box}
      type="search"
      class="search"
      placeholder="Search passes, nodes, lines   /"
      aria-label="Search passes, nodes and source lines"
      value={query}
      onInput={(e) => setQuery(e.currentTarget.value)}
      onKeyDown={(e) => {
        if (e.key === "Escape") {
          setQuery("");
          e.currentTarget.blur();
        }
        if (e.key === "Enter" || e.key === "ArrowDown") {
          e.preventDefault();
          const first = document.querySelector<HTMLAnchorElement>(".results a");
          if (e.key === "Enter") first?.click();
          else first?.focus();
        }
      }}
    />
  );
}

/** The graph that is looked at with all its passes; of the others, the names. */
function GraphEntry({ graph, several }: { graph: Graph; several: boolean }) {
  const app = useApp();
  const here = app.route.graph === graph;
  const page = (name: "overview" | "partition" | "kernels", title: string) => (
    <PageLink href={linkTo(app, elsewhere(app.route, { page: name, graph }))} current={here && app.route.page === name} title={title} />
  );
  const heading = several && (
    <h2>
      <a href={linkTo(app, elsewhere(app.route, { page: "overview", graph }))}>
        <span>{`Graph ${graph.number}`}</span> {graph.description}
      </a>
    </h2>
  );
  if (!here) return <section class="graph">{heading}</section>;
  return (
    <section class="graph" aria-label={several ? `Graph ${graph.number}` : undefined}>
      {heading}
      {page("overview", "Overview")}
      {graph.stages.map((stage) => (
        <StageEntry key={stage.key} graph={graph} stage={stage} />
      ))}
      {graph.partition && graph.stages.every((stage) => stage.name !== "partition") && page("partition", "Saved for backward")}
      {graph.kernels.length > 0 && page("kernels", `Kernels (${graph.kernels.length})`)}
    </section>
  );
}

function PageLink({ href, current, title }: { href: string; current: boolean; title: string }) {
  return (
    <a class="page-link" href={href} aria-current={current ? "page" : undefined}>
      {title}
    </a>
  );
}

/** A jet that draws the fluid around it along: an eductor. */
function Mark() {
  return (
    <svg class="mark" viewBox="0 0 24 24" aria-hidden="true">
      <path d="M2 6h5l6 4.5h9M2 18h5l6-4.5h9" />
      <path class="jet" d="M2 12h20" />
    </svg>
  );
}
