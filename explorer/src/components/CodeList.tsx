// A listing of any length: only the lines on the screen are there.
import { useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";
import { beside, useApp, visit } from "../app";
import { pieces } from "../highlight";
import { ROOM, codeOf, comment, excerpt, type Line, type Side } from "../lines";

const HEIGHT = 22;
const SPARE = 12;

export function CodeList({ lines, label, open }: { lines: Line[]; label: string; open?: (from: number, to: number) => void }) {
  const app = useApp();
  const frame = useRef<HTMLDivElement>(null);
  const [top, setTop] = useState(0);
  const [height, setHeight] = useState(600);
  const chosen = app.route.node;

  useLayoutEffect(() => {
    const watcher = new ResizeObserver(([entry]) => setHeight(entry!.contentRect.height));
    watcher.observe(frame.current!);
    return () => watcher.disconnect();
  }, []);
  useLayoutEffect(() => {
    // Another listing begins at its first change; a node that was chosen elsewhere comes into view.
    const at = chosen === null ? -1 : lines.findIndex((line) => nodesOf(line).some((id) => id === chosen));
    const box = frame.current!;
    const y = at * HEIGHT;
    if (at >= 0 && (y < box.scrollTop || y > box.scrollTop + box.clientHeight - HEIGHT)) box.scrollTop = Math.max(0, y - box.clientHeight / 3);
    setTop(box.scrollTop);
  }, [lines, chosen]);

  const first = Math.max(0, Math.floor(top / HEIGHT) - SPARE);
  const shown = lines.slice(first, first + Math.ceil(height / HEIGHT) + 2 * SPARE);
  const widest = useMemo(() => widthOf(lines), [lines]);
  const walk = (event: KeyboardEvent) => {
    if (event.key !== "ArrowDown" && event.key !== "ArrowUp") return;
    const ids = lines.flatMap((line) => nodesOf(line).slice(-1));
    const next = ids[ids.indexOf(chosen ?? -1) + (event.key === "ArrowDown" ? 1 : -1)];
    event.preventDefault();
    if (next !== undefined) visit(app, beside(app.route, { node: next }));
  };
  return (
    <div
      ref={frame}
      class={lines.some((line) => line.type === "pair") ? "listing two" : "listing"}
      role="listbox"
      aria-label={label}
      aria-activedescendant={shown.some((line) => nodesOf(line).some((id) => id === chosen)) ? `line-${chosen}` : undefined}
      tabIndex={0}
      onScroll={(e) => setTop(e.currentTarget.scrollTop)}
      onKeyDown={walk}
    >
      <div class="all" style={{ height: lines.length * HEIGHT, minWidth: `${widest}ch` }}>
        <div class="shown" style={{ transform: `translateY(${first * HEIGHT}px)` }}>
          {shown.map((line, index) => (
            <LineView key={first + index} line={line} chosen={chosen} open={open} />
          ))}
        </div>
      </div>
    </div>
  );
}

function LineView({ line, chosen, open }: { line: Line; chosen: number | null; open: ((from: number, to: number) => void) | undefined }) {
  if (line.type === "frame") {
    return (
      <div class="line frame" role="presentation">
        <span class="sign" />
        <Code code={line.text} mark={null} />
      </div>
    );
  }
  if (line.type === "fold") {
    return (
      <button type="button" class="line fold" role="option" aria-selected={false} onClick={() => open?.(line.from, line.from + line.hidden)}>
        {`${line.hidden} unchanged lines`}
      </button>
    );
  }
  if (line.type === "code") return <SideView side={line.side} kind={line.kind} sign={line.sign} chosen={chosen} />;
  const leftKind = line.kind === "same" ? "same" : line.left ? "removed" : "none";
  const rightKind = line.kind === "same" ? "same" : line.right ? "added" : "none";
  return (
    <div class="pair" role="presentation">
      {line.left ? <SideView side={line.left} kind={leftKind} sign={line.kind === "same" ? "" : "−"} chosen={chosen} /> : <div class="line none" />}
      {line.right ? <SideView side={line.right} kind={rightKind} sign={line.kind === "same" ? line.sign : "+"} chosen={chosen} /> : <div class="line none" />}
    </div>
  );
}

function SideView({ side, kind, sign, chosen }: { side: Side; kind: string; sign: string; chosen: number | null }) {
  const app = useApp();
  const { node } = side;
  const isChosen = chosen === node.id;
  return (
    <div
      class={`line ${kind}`}
      id={isChosen ? `line-${node.id}` : undefined}
      role="option"
      aria-selected={isChosen}
      data-node={node.id}
      title={side.mark && node.code.length > ROOM ? node.code : undefined}
      onClick={() => visit(app, beside(app.route, isChosen ? null : { node: node.id }))}
    >
      <span class="sign" title={sign === "↕" ? "moved" : undefined}>
        {sign}
      </span>
      <span class="indent">{"    "}</span>
      <Code {...excerpt(codeOf(node), side.mark)} />
      <span class="tok-comment">{comment(node)}</span>
    </div>
  );
}

function Code({ code, mark }: { code: string; mark: [number, number] | null }) {
  const parts = useMemo(() => pieces(code, mark), [code, mark?.[0], mark?.[1]]);
  return (
    <code>
      {parts.map((part, index) => (
        <span key={index} class={part.marked ? `${part.style} marked` : part.style}>
          {part.text}
        </span>
      ))}
    </code>
  );
}

function nodesOf(line: Line): number[] {
  if (line.type === "code") return [line.side.node.id];
  if (line.type === "pair") return [line.left, line.right].flatMap((side) => (side ? [side.node.id] : []));
  return [];
}

function widthOf(lines: Line[]): number {
  let widest = 0;
  for (const line of lines) {
    if (line.type !== "code") continue;
    widest = Math.max(widest, codeOf(line.side.node).length + comment(line.side.node).length + 8);
  }
  return Math.min(widest, 400);
}
