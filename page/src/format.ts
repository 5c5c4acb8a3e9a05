// How numbers are written.

export type Unit = "plain" | "seconds" | "bytes" | "share";

export function number(value: unknown): string {
  if (value === null || value === undefined) return "–";
  if (typeof value !== "number") return String(value);
  if (!Number.isFinite(value)) return Number.isNaN(value) ? "NaN" : value > 0 ? "∞" : "−∞";
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (Number.isInteger(value) && size < 1e7) return value.toLocaleString("en-US");
  if (size >= 1e6 || size < 1e-3) return value.toExponential(2).replace(/\.?0+e/, "e").replace("e+", "e").replace(/-/g, "−");
  return String(Number(value.toPrecision(4))).replace("-", "−");
}

/** A number that a verdict rests on, in the three digits that matter: as the terminal says it. */
export function measured(value: unknown, digits = 3): string {
  if (typeof value !== "number" || !Number.isFinite(value) || Number.isInteger(value)) return number(value);
  return number(Math.abs(value) >= 100 && Math.abs(value) < 1e6 ? Math.round(value) : Number(value.toPrecision(digits)));
}

// Noise under this share of what was measured is no error anybody would ask about.
const NO_NOISE = 1e-9;

/** "0 ± 1e−6": what should have been measured, and how far noise alone takes it. */
export function expected(value: unknown, noise: unknown, found: unknown): string {
  const text = measured(value);
  if (typeof noise !== "number" || !noise || typeof value !== "number") return text;
  const scale = Math.max(Math.abs(value), typeof found === "number" ? Math.abs(found) : 0);
  return noise < NO_NOISE * scale ? text : `${text} ± ${measured(noise, noise < 0.01 ? 1 : 2)}`;
}

export function amount(value: number | null | undefined, unit: Unit): string {
  if (value === null || value === undefined) return "–";
  if (unit === "bytes") return bytes(value);
  if (unit === "seconds") return seconds(value);
  if (unit === "share") return `${number(Math.round(value * 1000) / 10)} %`;
  return number(value);
}

export function bytes(value: number): string {
  const units = ["B", "kB", "MB", "GB", "TB"];
  let at = 0;
  while (Math.abs(value) >= 1000 && at < units.length - 1) [value, at] = [value / 1000, at + 1];
  return `${at === 0 ? Math.round(value) : Number(value.toPrecision(3))} ${units[at]}`;
}

export function seconds(value: number): string {
  if (value < 1e-3) return `${(value * 1e6).toPrecision(3)} µs`;
  if (value < 1) return `${Number((value * 1e3).toPrecision(3))} ms`;
  if (value < 120) return `${Number(value.toPrecision(3))} s`;
  return value < 7200 ? `${Math.round(value / 60)} min` : `${(value / 3600).toFixed(1)} h`;
}

export function ago(time: number | null | undefined): string {
  if (!time) return "";
  const gone = Math.max(0, Date.now() / 1000 - time);
  if (gone < 5) return "now";
  if (gone < 90) return `${Math.round(gone)} s ago`;
  if (gone < 5400) return `${Math.round(gone / 60)} min ago`;
  if (gone < 129600) return `${Math.round(gone / 3600)} h ago`;
  return new Date(time * 1000).toLocaleDateString("en-CA");
}

export function moment(time: number | null | undefined): string {
  return time ? new Date(time * 1000).toLocaleString("en-CA", { hour12: false }).replace(",", "") : "–";
}

export const steps = (count: number) => `${Math.round(count).toLocaleString("en-US")} step${count === 1 ? "" : "s"}`;
export const words = (name: string) => name.replace(/[_-]/g, " ");

/** As a sentence begins. */
export const capital = (text: string) => text.charAt(0).toUpperCase() + text.slice(1);
