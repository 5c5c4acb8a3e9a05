// Colour scales of the heat maps.
import type { LayerStat } from "./charts";
import type { Theme } from "./theme";
import type { Heat } from "./types";

type Rgb = [number, number, number];

const hex = (code: string): Rgb => [1, 3, 5].map((at) => parseInt(code.slice(at, at + 2), 16)) as Rgb;
const SEQUENTIAL = ["#2b1d52", "#34568b", "#238a8d", "#6cc06a", "#f6e04b"].map(hex);
const DIVERGING: Record<Theme, Rgb[]> = {
  light: ["#1f5fa8", "#8ebfe0", "#f1efe9", "#f0a17e", "#ad1f2d"].map(hex),
  dark: ["#5aa2e8", "#2f5f8c", "#33363b", "#a3563a", "#ff7a6b"].map(hex),
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

export function scaleOf(stat: LayerStat, heat: Heat, theme: Theme): Scale {
  if (stat.scale === "ratio") {
    // A thousandth in the middle, two decades either way.
    const make = (v: number) => blend(DIVERGING[theme], v > 0 ? (Math.log10(v) + 5) / 4 : 0);
    return { low: 1e-5, high: 1e-1, color: make, ends: [1e-5, 1e-1] };
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
