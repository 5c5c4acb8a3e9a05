// From down-sampled series to what uPlot draws.
import uPlot from "uplot";
import type { Line } from "./charts";
import type { Points, SeriesData } from "./types";

export interface Drawn extends Line {
  data: Points;
  color: string;
}

const near = (a: number | null, b: number | null) =>
  a === b || (a !== null && b !== null && Math.abs(a - b) <= 1e-4 * Math.max(Math.abs(a), Math.abs(b)));

function same(a: Points, b: Points): boolean {
  return a.steps.length === b.steps.length && a.values.every((v, i) => near(v, b.values[i]) && a.steps[i] === b.steps[i]);
}

/** Lines that lie on each other become one, with both names: three equal losses are one line. */
export function drawn(lines: Line[], data: SeriesData, palette: string[], keepAll = false): Drawn[] {
  const found: Drawn[] = [];
  let color = 0;
  for (const line of lines) {
    const points = data[line.name];
    if (!points?.steps.length || points.values.every((v) => v === null && !points.bad)) continue;
    // A run that never had it (all zero left over, no scaler) needs no line for it.
    if (line.kind === "points" && line.name !== "loss.eval" && points.values.every((v) => !v)) continue;
    const twin = line.kind || keepAll ? undefined : found.find((f) => !f.kind && same(f.data, points));
    if (twin) twin.label = `${twin.label} = ${line.label}`;
    else found.push({ ...line, data: points, color: palette[color++ % palette.length] });
  }
  return found;
}

/** One shared axis of steps. undefined: not measured here, the line goes on; null: a gap. */
export function aligned(lines: Drawn[], log: boolean): uPlot.AlignedData {
  if (!lines.length) return [[]] as unknown as uPlot.AlignedData;
  return uPlot.join(
    lines.map((line) => [
      line.data.steps,
      log ? line.data.values.map((v) => (v !== null && v > 0 ? v : null)) : line.data.values,
    ]),
  );
}

/** The last value at or before a step; the last of all without one. */
export function valueAt(points: Points, step: number | null): number | null {
  if (step === null) return points.values[points.values.length - 1] ?? null;
  let low = 0;
  let high = points.steps.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (points.steps[middle] <= step + 0.5) low = middle + 1;
    else high = middle;
  }
  return low ? points.values[low - 1] : null;
}

/** What was not finite at a step, if anything. */
export function badAt(points: Points, step: number | null): string | null {
  if (!points.bad) return null;
  if (step === null) return points.values.at(-1) === null ? (points.bad.at(-1)?.[1] ?? null) : null;
  return points.bad.find(([at]) => Math.abs(at - step) < 0.5)?.[1] ?? null;
}
