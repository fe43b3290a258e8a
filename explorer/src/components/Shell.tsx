// The frame of the page: passes on the left, what was chosen in the middle, details of a node on the right.
import { useEffect, useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";
import { AppContext, beside, elsewhere, visit, type App } from "../app";
import type { Book } from "../book";
import { keysFor } from "../keys";
import type { Provenance } from "../provenance";
import { parse } from "../route";
import { startTheme, type Theme } from "../theme";
import { Help } from "./Help";
import { KernelsPage } from "./KernelsPage";
import { Overview } from "./Overview";
import { PartitionPage } from "./PartitionPage";
import { PassPage } from "./PassPage";
import { Sidebar } from "./Sidebar";
import { SidePanel } from "./SidePanel";
import { StagePage } from "./StagePage";

export function Shell({ book, provenance }: { book: Book; provenance: Provenance }) {
  const [hash, setHash] = useState(location.hash);
  const [changedOnly, showChangedOnly] = useState(true);
  const only = useRef(changedOnly);
  const setChangedOnly = (wanted: boolean) => {
    only.current = wanted;
    showChangedOnly(wanted);
  };
  const [helping, setHelping] = useState(false);
  const [theme, setTheme] = useState<Theme>(startTheme);
  const searchBox = useRef<HTMLInputElement>(null);
  const route = useMemo(() => parse(hash, book), [hash, book]);
  const app: App = { book, provenance, route, changedOnly };

  useEffect(() => {
    const follow = () => setHash(location.hash);
    addEventListener("hashchange", follow);
    return () => removeEventListener("hashchange", follow);
  }, []);
  useLayoutEffect(() => {
    document.documentElement.dataset["theme"] = theme;
  }, [theme]);
  useEffect(() => {
    // Keys may come faster than the page follows: each starts from the latest state, not from what is drawn.
    const now = (): App => ({ ...app, changedOnly: only.current, route: parse(location.hash, book) });
    const press = keysFor({
      pass: (step) => nextPass(now(), step),
      match: (step) => nextMatch(now(), step),
      search: () => searchBox.current?.focus(),
      help: () => setHelping((now) => !now),
      changedOnly: () => setChangedOnly(!only.current),
      theme: () => setTheme((now) => (now === "dark" ? "light" : "dark")),
      overview: () => visit(app, elsewhere(route, { page: "overview" })),
      close: () => (helping ? setHelping(false) : visit(app, beside(route, null))),
    });
    addEventListener("keydown", press);
    return () => removeEventListener("keydown", press);
  });

  const beholding = route.node !== null || route.source !== null || route.module !== null;
  return (
    <AppContext.Provider value={app}>
      <div class={`shell${beholding ? " with-panel" : ""}${route.page === "overview" || route.page === "partition" ? " flowing" : ""}`}>
        <Sidebar
          searchBox={searchBox}
          setChangedOnly={setChangedOnly}
          theme={theme}
          setTheme={setTheme}
          openHelp={() => setHelping(true)}
        />
        <main id="main" tabIndex={-1} aria-label="What was chosen">
          <PageBody app={app} />
        </main>
        {beholding && <SidePanel />}
      </div>
      {helping && <Help close={() => setHelping(false)} />}
    </AppContext.Provider>
  );
}

function PageBody({ app }: { app: App }) {
  const { page, graph, run, stage } = app.route;
  if (page === "pass") return <PassPage key={`${stage!.key}${run!.index}`} run={run!} />;
  if (page === "stage") return <StagePage key={stage!.key} stage={stage!} />;
  if (page === "partition") return <PartitionPage key={graph.number} graph={graph} />;
  if (page === "kernels") return <KernelsPage key={graph.number} graph={graph} />;
  return <Overview key={graph.number} graph={graph} />;
}

/** To the next pass that the list shows. */
function nextPass(app: App, step: 1 | -1): void {
  const { book, route, changedOnly } = app;
  const at = route.run ? book.runs.indexOf(route.run) : step > 0 ? -1 : book.runs.length;
  for (let i = at + step; i >= 0 && i < book.runs.length; i += step) {
    const run = book.runs[i]!;
    if (changedOnly && run.pass.status !== "changed" && run.pass.status !== "failed") continue;
    return visit(app, elsewhere(route, { page: "pass", graph: run.graph, stage: run.stage, run }));
  }
}

/** To the next match of the pass; before the first and behind the last stands the pass as a whole. */
function nextMatch(app: App, step: 1 | -1): void {
  const { run, match } = app.route;
  if (!run?.pass.matches.length) return;
  const places = run.pass.matches.length + 1;
  const at = ((match === null ? 0 : match + 1) + step + places) % places;
  visit(app, { ...app.route, match: at === 0 ? null : at - 1, view: "changes" });
}
