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

/** Whether one measure, taken more rarely, is the other wherever both were taken. */
function same(a: Points, b: Points): boolean {
  const [few, many] = a.steps.length <= b.steps.length ? [a, b] : [b, a];
  const known = new Map(many.steps.map((step, i) => [step, many.values[i]]));
  const shared = few.steps.map((step, i) => [few.values[i], known.get(step)] as const).filter(([, other]) => other !== undefined);
  return shared.length >= Math.min(3, few.steps.length) && shared.length * 2 >= few.steps.length && shared.every(([one, other]) => near(one, other!));
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
    if (twin) {
      twin.label = `${twin.label} = ${line.label}`;
      if (points.steps.length > twin.data.steps.length) twin.data = points;
    }
    else found.push({ ...line, data: points, color: palette[color++ % palette.length] });
  }
  return found;
}

/** A mean that forgets over `span` steps, whatever the distance of the points; gaps stay gaps. */
export function smoothed(points: Points, span: number): Points {
  let [sum, weight, last] = [0, 0, points.steps[0] ?? 0];
  const values = points.values.map((value, i) => {
    if (value === null) return null;
    const kept = Math.exp(-(points.steps[i] - last) / span);
    last = points.steps[i];
    sum = sum * kept + value;
    weight = weight * kept + 1;
    return sum / weight;
  });
  return { steps: points.steps, values };
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
