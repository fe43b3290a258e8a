import { useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";
import type { Row } from "../diff";
import { folded, oneColumn, twoColumns } from "../lines";
import { CodeList } from "./CodeList";

const ROOM_FOR_TWO = 1150;

/** The graph before and after; beside each other where there is room. */
export function DiffView({ rows }: { rows: Row[] }) {
  const place = useRef<HTMLDivElement>(null);
  const [two, setTwo] = useState(false);
  const [opened, setOpened] = useState<Set<number>>(new Set());
  useLayoutEffect(() => setOpened(new Set()), [rows]);
  useLayoutEffect(() => {
    const watcher = new ResizeObserver(([entry]) => setTwo(entry!.contentRect.width >= ROOM_FOR_TWO));
    watcher.observe(place.current!);
    return () => watcher.disconnect();
  }, []);
  const lines = useMemo(() => {
    const items = folded(rows, opened);
    return two ? twoColumns(items) : oneColumn(items);
  }, [rows, opened, two]);
  const still = rows.every((row) => row.kind === "same");
  return (
    <div ref={place} class="diff">
      {still && <p class="quiet">Nodes were only renamed or moved (↕): the same is computed.</p>}
      {two && (
        <div class="column-heads" aria-hidden="true">
          <span>before</span>
          <span>after</span>
        </div>
      )}
      <CodeList lines={lines} label="The graph before and after" open={(fold) => setOpened(new Set([...opened, fold]))} />
    </div>
  );
}
