// Memory against time: what each budget would come to, and the one that was chosen.
import { bytes, time } from "../format";
import type { Point } from "../schema";
import { byteTicks, ticks } from "../ticks";
import { useWidth } from "../width";

const [HEIGHT, LEFT, RIGHT, BOTTOM, TOP] = [230, 64, 28, 42, 12];

export function CurveChart({ points, chosen }: { points: Point[]; chosen: Point }) {
  const [picture, width] = useWidth<SVGSVGElement>(480);
  const sorted = points.toSorted((a, b) => a.bytes - b.bytes);
  const across = byteTicks(Math.max(...points.map((point) => point.bytes), chosen.bytes));
  const up = ticks(Math.max(...points.map((point) => point.seconds), chosen.seconds));
  const x = (size: number) => LEFT + ((width - LEFT - RIGHT) * size) / across.at(-1)!;
  const y = (seconds: number) => TOP + (HEIGHT - BOTTOM - TOP) * (1 - seconds / up.at(-1)!);
  const says = (point: Point) => `budget ${point.budget}: ${bytes(point.bytes)} saved, ${time(point.seconds)}, at most ${bytes(point.peak)} held`;
  return (
    <figure class="chart">
      <figcaption>
        <h2>Less memory, more time</h2>
        <p>
          {`Chosen: `}
          <b>{`budget ${chosen.budget}`}</b>
          {`, ${bytes(chosen.bytes)} saved, ${time(chosen.seconds)} for saving and recomputing`}
        </p>
      </figcaption>
      <svg ref={picture} height={HEIGHT} role="img" aria-label={`Memory against time; chosen: ${says(chosen)}`}>
        {up.map((seconds) => (
          <g key={seconds} class="grid">
            <line x1={LEFT} x2={width - RIGHT} y1={y(seconds)} y2={y(seconds)} />
            <text x={LEFT - 8} y={y(seconds) + 4} text-anchor="end">
              {seconds === 0 ? "0" : time(seconds)}
            </text>
          </g>
        ))}
        {across.map((size) => (
          <text key={size} class="tick" x={x(size)} y={HEIGHT - BOTTOM + 16} text-anchor="middle">
            {size === 0 ? "0" : bytes(size)}
          </text>
        ))}
        <text class="axis" x={(LEFT + width - RIGHT) / 2} y={HEIGHT - 6} text-anchor="middle">
          saved for backward
        </text>
        <path class="curve" d={`M${sorted.map((point) => `${x(point.bytes)} ${y(point.seconds)}`).join("L")}`} />
        {sorted.map((point) => (
          <circle key={point.budget} class="dot" cx={x(point.bytes)} cy={y(point.seconds)} r="3.5">
            <title>{says(point)}</title>
          </circle>
        ))}
        <circle class="point" cx={x(chosen.bytes)} cy={y(chosen.seconds)} r="6">
          <title>{`chosen: ${says(chosen)}`}</title>
        </circle>
      </svg>
    </figure>
  );
}
