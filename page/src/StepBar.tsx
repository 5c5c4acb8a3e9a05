import { number } from "./format";
import { useHover, useRange, useSmooth, type View } from "./view";

const SPANS = [0, 5, 10, 30, 100, 300, 1000];

/** The shared window of steps: where it is, and buttons for those without a mouse wheel. */
export function StepBar({ view, live }: { view: View; live: boolean }) {
  const range = useRange(view);
  const hover = useHover(view);
  const smooth = useSmooth(view);
  const [low, high] = view.shown;
  return (
    <div class="stepbar" role="toolbar" aria-label="Window of steps">
      <span class="window">
        steps <b>{number(Math.round(low))}</b> – <b>{number(Math.round(high))}</b>
        {hover !== null && <span class="at"> at {number(hover)}</span>}
      </span>
      <span class="buttons">
        <button type="button" onClick={() => view.pan(-0.4)} disabled={!range} aria-label="Earlier">←</button>
        <button type="button" onClick={() => view.pan(0.4)} disabled={!range} aria-label="Later">→</button>
        <button type="button" onClick={() => view.zoom(1 / 0.5)} disabled={!range} aria-label="Zoom out">−</button>
        <button type="button" onClick={() => view.zoom(0.5)} aria-label="Zoom in">+</button>
        <button type="button" onClick={() => view.setRange(null)} disabled={!range}>{live ? "all, follow" : "all"}</button>
      </span>
      <label class="smooth">
        smooth{" "}
        <select value={smooth} onChange={(e) => view.setSmooth(Number(e.currentTarget.value))}>
          {SPANS.map((span) => (
            <option key={span} value={span}>
              {span ? `over ${span} steps` : "off"}
            </option>
          ))}
        </select>
      </label>
      <span class="hint">drag to zoom, double click for all; keys + − 0 and arrows on a plot</span>
    </div>
  );
}
