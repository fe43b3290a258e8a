import { useLayoutEffect, useMemo, useState } from "preact/hooks";
import { useApp } from "../app";
import type { Row } from "../diff";
import { codeOf, folded, oneColumn, twoColumns } from "../lines";
import { useWidth } from "../width";
import { CodeList } from "./CodeList";

const LEAST = 1150;
const MARGIN = 80;
const LETTER = 7.6;

/** The graph before and after; beside each other where the changed lines have room. */
export function DiffView({ rows }: { rows: Row[] }) {
  const [place, width] = useWidth<HTMLDivElement>(900);
  const [opened, setOpened] = useState<[number, number][]>([]);
  const { node } = useApp().route;
  useLayoutEffect(() => setOpened([]), [rows]);
  const needed = useMemo(() => Math.max(LEAST, 2 * (longestChange(rows) * LETTER + MARGIN)), [rows]);
  const two = needed <= width;
  const lines = useMemo(() => {
    const items = folded(rows, opened, node);
    return two ? twoColumns(items) : oneColumn(items);
  }, [rows, opened, node, two]);
  const still = rows.every((row) => row.kind === "same");
  return (
    <div ref={place} class="diff">
      {still && <p class="quiet">Nodes were only renamed or moved (↕); the computation is the same.</p>}
      {two && (
        <div class="column-heads" aria-hidden="true">
          <span>before</span>
          <span>after</span>
        </div>
      )}
      <CodeList lines={lines} label="The graph before and after" open={(from, to) => setOpened([...opened, [from, to]])} />
    </div>
  );
}

function longestChange(rows: Row[]): number {
  const lengths = rows.filter((row) => row.kind !== "same").flatMap(({ before, after }) => [before, after]);
  return lengths.reduce((most, node) => Math.max(most, node ? codeOf(node).length : 0), 0);
}
