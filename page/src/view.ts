// One window of steps and one cursor for all pictures of a page.
import { useEffect, useState } from "preact/hooks";
import { recall, remember } from "./memory";
import type { Range } from "./types";

export class View {
  /** null: everything, following the run's end. */
  range: Range | null = null;
  hover: number | null = null;
  /** Chart that a finding points at, with its step. */
  focus: { chart: string; step: number | null; label: string } | null = null;
  /** Steps over which curves are averaged; 0: as measured. The reader's choice holds for all pages. */
  smooth = recall<number>("smooth", 0);
  private last = 1;
  private ranges = new Set<() => void>();
  private hovers = new Set<() => void>();

  setLast(last: number) {
    if (last === this.last) return;
    this.last = Math.max(1, last);
    if (!this.range) this.ranges.forEach((call) => call());
  }
  get end() {
    return this.last;
  }
  get shown(): Range {
    return this.range ?? [0, this.last];
  }
  setRange(range: Range | null) {
    if (range) {
      let [low, high] = range;
      const least = Math.min(4, this.last);
      if (high - low < least) [low, high] = [(low + high - least) / 2, (low + high + least) / 2];
      if (low < 0) [low, high] = [0, high - low];
      if (high > this.last) [low, high] = [Math.max(0, low - (high - this.last)), this.last];
      range = low <= 0 && high >= this.last ? null : [low, high];
    }
    this.range = range;
    this.ranges.forEach((call) => call());
  }
  zoom(factor: number, around?: number) {
    const [low, high] = this.shown;
    const center = around ?? (low + high) / 2;
    this.setRange([center - (center - low) * factor, center + (high - center) * factor]);
  }
  pan(share: number) {
    const [low, high] = this.shown;
    const by = (high - low) * share;
    if (this.range) this.setRange([low + by, high + by]);
  }
  setHover(step: number | null) {
    if (step === this.hover) return;
    this.hover = step;
    this.hovers.forEach((call) => call());
  }
  setFocus(focus: View["focus"]) {
    this.focus = focus;
    this.ranges.forEach((call) => call());
  }
  setSmooth(steps: number) {
    this.smooth = steps;
    remember("smooth", steps);
    this.ranges.forEach((call) => call());
  }
  onRange(call: () => void) {
    this.ranges.add(call);
    return () => void this.ranges.delete(call);
  }
  onHover(call: () => void) {
    this.hovers.add(call);
    return () => void this.hovers.delete(call);
  }
}

export function useRange(view: View): Range | null {
  const [, again] = useState(0);
  useEffect(() => view.onRange(() => again((n) => n + 1)), [view]);
  return view.range;
}

export function useSmooth(view: View): number {
  useRange(view);
  return view.smooth;
}

export function useHover(view: View): number | null {
  const [, again] = useState(0);
  useEffect(() => view.onHover(() => again((n) => n + 1)), [view]);
  return view.hover;
}

/** The keys every picture understands. */
export function onKey(view: View, event: KeyboardEvent) {
  const [low, high] = view.shown;
  const small = Math.max(1, Math.round((high - low) / 100));
  const actions: Record<string, () => void> = {
    "+": () => view.zoom(0.6),
    "=": () => view.zoom(0.6),
    "-": () => view.zoom(1 / 0.6),
    "0": () => view.setRange(null),
    Escape: () => view.setRange(null),
    ArrowLeft: () => (event.shiftKey ? view.pan(-0.2) : view.setHover(Math.max(low, (view.hover ?? high) - small))),
    ArrowRight: () => (event.shiftKey ? view.pan(0.2) : view.setHover(Math.min(high, (view.hover ?? low) + small))),
  };
  const action = event.ctrlKey || event.metaKey || event.altKey ? undefined : actions[event.key];
  if (!action) return;
  event.preventDefault();
  action();
}
