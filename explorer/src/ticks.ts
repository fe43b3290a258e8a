/** From 0 to at least `most` in a few round steps. */
export function ticks(most: number, steps = 4): number[] {
  if (most <= 0) return [0, 1];
  const rough = most / steps;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 2.5, 5, 10].map((factor) => factor * power).find((each) => each >= rough)!;
  const count = Math.ceil(most / step - 1e-9);
  return Array.from({ length: count + 1 }, (_, index) => index * step);
}

/** The same for memory, where round means round in KiB, MiB or GiB. */
export function byteTicks(most: number): number[] {
  const unit = 1024 ** Math.max(0, Math.floor(Math.log2(Math.max(1, most)) / 10));
  return ticks(most / unit).map((each) => each * unit);
}
