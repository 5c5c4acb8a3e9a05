// Colour scales of the heat maps.
import type { LayerStat } from "./charts";
import type { Theme } from "./theme";
import type { Heat } from "./types";

type Rgb = [number, number, number];

const hex = (code: string): Rgb => [1, 3, 5].map((at) => parseInt(code.slice(at, at + 2), 16)) as Rgb;
const SEQUENTIAL = ["#2b1d52", "#34568b", "#238a8d", "#6cc06a", "#f6e04b"].map(hex);
// By the power of ten of update / weight: ordinary steps stay grey, however far below 1; what hardly moves is blue, and only
// a step longer than the weight itself turns red. A bias that began at zero has 1 after its first step.
const RATIO_POWERS = [-8, -6, -4.5, -2, 0, 0.5, 1.5];
const RATIO: Record<Theme, Rgb[]> = {
  light: ["#1f5fa8", "#9dc3e3", "#e9eaea", "#c3c6c8", "#8f9498", "#e08a5c", "#ad1f2d"].map(hex),
  dark: ["#5aa2e8", "#2f5f8c", "#30343a", "#4c525a", "#7b828b", "#c76b46", "#ff6a5c"].map(hex),
};
export const BAD: Rgb = [235, 40, 140];

export interface Scale {
  low: number;
  high: number;
  color(value: number): Rgb;
  /** Values that stand under the colour bar. */
  ends: [number, number];
}

function blend(stops: Rgb[], at: number): Rgb {
  const place = Math.min(Math.max(at, 0), 1) * (stops.length - 1);
  const index = Math.min(Math.floor(place), stops.length - 2);
  const share = place - index;
  return stops[index].map((c, k) => Math.round(c + (stops[index + 1][k] - c) * share)) as Rgb;
}

/** The colour at a place among stops that are not evenly apart. */
function between(places: number[], stops: Rgb[], at: number): Rgb {
  const next = places.findIndex((place) => place >= at);
  if (next === 0 || next === -1) return stops[next === 0 ? 0 : stops.length - 1];
  const share = (at - places[next - 1]) / (places[next] - places[next - 1]);
  return blend([stops[next - 1], stops[next]], share);
}

export function scaleOf(stat: LayerStat, heat: Heat, theme: Theme): Scale {
  if (stat.scale === "ratio") {
    const make = (v: number) => between(RATIO_POWERS, RATIO[theme], v > 0 ? Math.log10(v) : -Infinity);
    return { low: 1e-7, high: 10, color: make, ends: [1e-7, 10] };
  }
  if (stat.scale === "share") {
    return { low: 0, high: 1, color: (v) => blend(SEQUENTIAL, v), ends: [0, 1] };
  }
  const log = stat.scale === "log";
  const values: number[] = [];
  for (const row of heat.values) for (const v of row) if (Number.isFinite(v) && (!log || v > 0)) values.push(log ? Math.log10(v) : v);
  values.sort((a, b) => a - b);
  // A few extreme cells must not take all the colours.
  let low = values[Math.floor(values.length * 0.01)] ?? 0;
  let high = values[Math.floor(values.length * 0.99)] ?? 1;
  // All alike: the middle of the scale, not its dark end.
  if (high - low < 1e-9) [low, high] = [low - 0.5, high + 0.5];
  return {
    low,
    high,
    color: (v) => blend(SEQUENTIAL, ((log ? (v > 0 ? Math.log10(v) : -Infinity) : v) - low) / (high - low)),
    ends: log ? [10 ** low, 10 ** high] : [low, high],
  };
}
