// A picture of what changed; of modules, where that is too much or nothing in particular is meant.
import { useEffect, useMemo, useState } from "preact/hooks";
import { beside, useApp, visit } from "../app";
import type { Row } from "../diff";
import { changedRegion, firstOpened, moduleTree, type Box } from "../picture/drawing";
import { place, type Placed } from "../picture/layout";

export function Picture({ rows, modulesOnly = false }: { rows: Row[]; modulesOnly?: boolean }) {
  const app = useApp();
  const { modules } = app.book.report;
  const [opened, setOpened] = useState(() => firstOpened(modules));
  const [placed, setPlaced] = useState<Placed | null>(null);
  const region = useMemo(() => (modulesOnly ? null : changedRegion(rows)), [rows, modulesOnly]);
  const drawing = useMemo(
    () => region ?? moduleTree(rows, modules, (node) => node.module ?? app.provenance.module(node.id), opened),
    [region, rows, modules, opened, app.provenance],
  );
  useEffect(() => {
    let wanted = true;
    place(drawing).then((done) => wanted && setPlaced(done));
    return () => {
      wanted = false;
    };
  }, [drawing]);

  const choose = (box: Box) => {
    if (box.node !== null) visit(app, beside(app.route, { node: box.node }));
    else if (box.opens !== null) setOpened(toggled(opened, box.opens));
    else {
      const module = modules.findIndex(({ path }) => path === box.id);
      if (module >= 0) visit(app, beside(app.route, { module }));
    }
  };
  const changes = rows.filter((row) => row.kind !== "same").length;
  return (
    <figure class="picture" aria-busy={placed === null}>
      <figcaption>
        {region ? "What changed, with its neighbours." : changes ? `${changes} nodes changed; here by module. Click a module to open or close it.` : "The nodes by module. Click a module to open or close it."}
        {region && <Legend />}
      </figcaption>
      {placed ? (
        <div class="canvas">
          <svg width={placed.width + 24} height={placed.height + 24} viewBox={`-12 -12 ${placed.width + 24} ${placed.height + 24}`} role="group" aria-label="Picture of the graph">
            <defs>
              <marker id="arrow" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">
                <path d="M0 0.5L8 4L0 7.5z" />
              </marker>
            </defs>
            {placed.edges.map((edge, index) => (
              <path key={index} class={`edge ${edge.kind}`} d={edge.path} marker-end={region ? "url(#arrow)" : undefined} />
            ))}
            {placed.boxes.map((box) => (
              <g
                key={box.id}
                class={`box ${box.kind}${box.node !== null && box.node === app.route.node ? " chosen" : ""}`}
                transform={`translate(${box.x} ${box.y})`}
                role="button"
                tabIndex={0}
                aria-label={`${box.node === null ? box.id : box.title}, ${box.text}${box.kind === "same" ? "" : `, ${box.kind}`}`}
                onClick={() => choose(box)}
                onKeyDown={(e) => (e.key === "Enter" || e.key === " ") && (e.preventDefault(), choose(box))}
              >
                <rect width={box.width} height={box.height} rx="6" />
                <text x={box.width / 2} y="18" class="box-title">{box.title}</text>
                <text x={box.width / 2} y="34" class="box-text">{box.opens === null ? box.text : `${box.text} ${opened.has(box.opens) ? "◂" : "▸"}`}</text>
              </g>
            ))}
          </svg>
        </div>
      ) : (
        <p class="quiet">Drawing …</p>
      )}
    </figure>
  );
}

function toggled(opened: Set<string>, path: string): Set<string> {
  const others = [...opened].filter((each) => each !== path);
  return new Set(opened.has(path) ? others : [...others, path]);
}

function Legend() {
  return (
    <span class="legend" aria-hidden="true">
      <i class="added" /> added <i class="removed" /> removed <i class="changed" /> changed
    </span>
  );
}
