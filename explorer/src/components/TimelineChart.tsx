// Memory over one training step: it fills through the forward and empties through the backward.
import { useState } from "preact/hooks";
import { beside, useApp, visit } from "../app";
import { bytes } from "../format";
import type { Moment } from "../schema";
import { byteTicks } from "../ticks";
import { useWidth } from "../width";

const [HEIGHT, LEFT, RIGHT, BOTTOM, TOP] = [230, 64, 4, 26, 12];

export function TimelineChart({ timeline }: { timeline: Moment[] }) {
  const app = useApp();
  const [picture, width] = useWidth<SVGSVGElement>(480);
  const [at, setAt] = useState<number | null>(null);
  const peak = timeline.reduce((best, moment, index) => (moment.live > timeline[best]!.live ? index : best), 0);
  const scale = byteTicks(timeline[peak]!.live);
  const most = scale.at(-1)!;
  const x = (index: number) => LEFT + ((width - LEFT - RIGHT) * index) / (timeline.length - 1);
  const y = (size: number) => TOP + (HEIGHT - BOTTOM - TOP) * (1 - size / most);
  const turn = timeline.findIndex((moment) => moment.phase === "backward");
  const border = turn < 0 ? timeline.length - 1 : turn;
  const line = timeline.map((moment, index) => `${x(index).toFixed(1)} ${y(moment.live).toFixed(1)}`).join("L");
  const follow = (event: MouseEvent) => {
    const box = picture.current!.getBoundingClientRect();
    const index = Math.round(((event.clientX - box.left - LEFT) / (width - LEFT - RIGHT)) * (timeline.length - 1));
    setAt(Math.max(0, Math.min(timeline.length - 1, index)));
  };
  const walk = (event: KeyboardEvent) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (event.key === "Enter") open();
    if (step === undefined) return;
    event.preventDefault();
    setAt(Math.max(0, Math.min(timeline.length - 1, (at ?? peak) + step)));
  };
  const shown = timeline[at ?? peak]!;
  const open = () => shown.node !== null && visit(app, beside(app.route, { node: shown.node }));
  return (
    <figure class="chart">
      <figcaption>
        <h2>Memory over forward and backward</h2>
        <p aria-live="polite">
          {`${at === null ? "Most" : "Here"}: `}
          <b>{bytes(shown.live)}</b>
          {` at `}
          <code>{shown.name}</code>
          {`, in the ${shown.phase}`}
        </p>
      </figcaption>
      <svg
        ref={picture}
        height={HEIGHT}
        role="slider"
        tabIndex={0}
        aria-label={`Memory held over forward and backward; at most ${bytes(timeline[peak]!.live)} at ${timeline[peak]!.name}`}
        aria-valuemin={0}
        aria-valuemax={timeline.length - 1}
        aria-valuenow={at ?? peak}
        aria-valuetext={`${bytes(shown.live)} at ${shown.name}, in the ${shown.phase}`}
        onKeyDown={walk}
        onMouseMove={follow}
        onMouseLeave={() => setAt(null)}
        onClick={open}
      >
        <rect class="phase" x={x(border)} y={TOP} width={width - RIGHT - x(border)} height={HEIGHT - BOTTOM - TOP} />
        {scale.map((size) => (
          <g key={size} class="grid">
            <line x1={LEFT} x2={width - RIGHT} y1={y(size)} y2={y(size)} />
            <text x={LEFT - 8} y={y(size) + 4} text-anchor="end">
              {size === 0 ? "0" : bytes(size)}
            </text>
          </g>
        ))}
        <path class="area" d={`M${x(0)} ${y(0)}L${line}L${x(timeline.length - 1)} ${y(0)}Z`} />
        <path class="curve" d={`M${line}`} />
        <text class="axis" x={(x(0) + x(border)) / 2} y={HEIGHT - 7} text-anchor="middle">
          forward
        </text>
        {turn >= 0 && (
          <text class="axis" x={(x(border) + width - RIGHT) / 2} y={HEIGHT - 7} text-anchor="middle">
            backward
          </text>
        )}
        <line class="cursor" x1={x(at ?? peak)} x2={x(at ?? peak)} y1={TOP} y2={HEIGHT - BOTTOM} />
        <circle class="point" cx={x(at ?? peak)} cy={y(shown.live)} r="4" />
      </svg>
    </figure>
  );
}
