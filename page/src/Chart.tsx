import { useEffect, useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";
import uPlot from "uplot";
import type { Line } from "./charts";
import { amount, number, type Unit } from "./format";
import { aligned, badAt, drawn, smoothed, valueAt, type Drawn } from "./lines";
import { css, type Theme } from "./theme";
import type { Points, SeriesData } from "./types";
import { onKey, useHover, useSmooth, type View } from "./view";

export interface Mark {
  step: number;
  label: string;
}

interface Props {
  id: string;
  title: string;
  about: string;
  lines: Line[];
  data: SeriesData;
  view: View;
  theme: Theme;
  log?: boolean;
  unit?: Unit;
  axis?: string;
  wide?: boolean;
  /** Write the names of the dashed lines beside them. */
  ladder?: boolean;
  /** Share of clipped steps, drawn at the foot. */
  clipped?: Points;
  /** A horizontal line that is no series, such as ln V. */
  level?: { value: number; label: string };
  marks?: Mark[];
  /** Equal lines stay apart: each is a run of its own. */
  keepAll?: boolean;
  /** Stands in a frame that has the title already. */
  framed?: boolean;
}

const PALETTE = ["--line-1", "--line-2", "--line-3", "--line-4", "--line-5", "--line-6"];

export function Chart(props: Props) {
  const { id, title, about, lines, data, view, theme, unit = "plain" } = props;
  const [log, setLog] = useState(props.log ?? false);
  const box = useRef<HTMLDivElement>(null);
  const plot = useRef<uPlot | null>(null);
  const latest = useRef(props);
  latest.current = props;

  const palette = useMemo(() => PALETTE.map(css), [theme]);
  const shown = useMemo(() => drawn(lines, data, palette, props.keepAll), [lines, data, palette]);
  const span = useSmooth(view);
  // Below each smooth line its raw one stays, faintly.
  const means = useMemo(() => (span ? shown.filter((line) => !line.kind).map((line) => ({ ...line, data: smoothed(line.data, span) })) : []), [shown, span]);
  const table = useMemo(() => aligned([...shown, ...means], log), [shown, means, log]);
  const shape = shown.map((line) => line.name + line.kind).join() + theme + log + means.length;

  useLayoutEffect(() => {
    const host = box.current!;
    const chart = new uPlot(options(shown, means, log, unit, props.axis, host, view, latest), table, host);
    plot.current = chart;
    const place = () => {
      const step = view.hover;
      chart.setCursor(step === null ? { left: -10, top: -10 } : { left: chart.valToPos(step, "x"), top: 5 }, false);
    };
    const scale = () => {
      const [min, max] = view.shown;
      chart.setScale("x", { min, max });
    };
    const stops = [view.onRange(scale), view.onHover(place)];
    const resize = new ResizeObserver(() => chart.setSize({ width: host.clientWidth, height: host.clientHeight }));
    resize.observe(host);
    return () => {
      stops.forEach((stop) => stop());
      resize.disconnect();
      chart.destroy();
      plot.current = null;
    };
  }, [shape, view]);

  useEffect(() => {
    const chart = plot.current;
    if (!chart) return;
    chart.batch(() => {
      chart.setData(table, false);
      const [min, max] = view.shown;
      chart.setScale("x", { min, max });
    });
  }, [table]);
  useEffect(() => plot.current?.redraw(false), [props.marks, props.clipped, props.level]);

  return (
    <figure class={`chart ${props.framed ? "" : "panel"} ${props.wide ? "wide" : ""}`} data-smooth={span} id={`chart-${id}`} tabIndex={0} aria-label={`${title}. ${about}`} onKeyDown={(e) => onKey(view, e)}>
      <figcaption>
        {!props.framed && <h3 title={about}>{title}</h3>}
        <Legend lines={shown} means={means} view={view} unit={unit} />
        <button class="quiet" type="button" aria-pressed={log} onClick={() => setLog(!log)} title="Logarithmic or linear axis">
          {log ? "log" : "linear"}
        </button>
      </figcaption>
      <div class="plot" ref={box} />
      <p class="about">
        {props.ladder && !shown.some((line) => line.kind === "aside") ? "" : about}
        {props.clipped && <ClippedShare clipped={props.clipped} />}
      </p>
    </figure>
  );
}

function Legend({ lines, means, view, unit }: { lines: Drawn[]; means: Drawn[]; view: View; unit: Unit }) {
  const hover = useHover(view);
  return (
    <ul class="legend">
      {lines.map((line) => {
        const bad = badAt(line.data, hover);
        const mean = means.find((one) => one.name === line.name);
        return (
          <li key={line.name} class={line.kind === "aside" ? "aside" : ""}>
            <i style={{ background: line.kind === "aside" ? css("--aside") : line.color }} />
            <span>{line.label}</span>
            <b class={bad ? "bad" : ""}>{bad ?? amount(valueAt(line.data, hover), unit)}</b>
            {mean && !bad && <em title="smoothed">~{amount(valueAt(mean.data, hover), unit)}</em>}
          </li>
        );
      })}
    </ul>
  );
}

function ClippedShare({ clipped }: { clipped: Points }) {
  const values = clipped.values.filter((v): v is number => v !== null);
  if (!values.length) return null;
  const share = values.reduce((a, b) => a + b, 0) / values.length;
  if (!share) return null;
  return <strong> Clipped in view: {number(Math.round(share * 1000) / 10)} % of steps.</strong>;
}

function options(lines: Drawn[], means: Drawn[], log: boolean, unit: Unit, label: string | undefined, host: HTMLElement, view: View, latest: { current: Props }): uPlot.Options {
  const ink = css("--muted");
  const grid = { stroke: css("--grid"), width: 1 };
  const font = `11px ${css("--sans")}`;
  const axis = { stroke: ink, grid, ticks: { ...grid, size: 4 }, font };
  return {
    width: host.clientWidth || 300,
    height: host.clientHeight || 200,
    padding: [10, 12, 0, 0],
    legend: { show: false },
    cursor: {
      y: false,
      points: { show: false },
      drag: { x: true, y: false, setScale: false, dist: 4 },
      bind: {
        dblclick: () => () => {
          view.setRange(null);
          return null;
        },
      },
    },
    select: { show: true, left: 0, top: 0, width: 0, height: 0 },
    scales: {
      x: { time: false, range: () => [...view.shown] as uPlot.Range.MinMax },
      y: {
        distr: log ? 3 : 1,
        range: (_, low, high) => {
          if (low === null || high === null || (low === 0 && high === 0)) return log ? [0.1, 10] : [0, 1];
          const level = latest.current.level?.value;
          if (level !== undefined && level < 3 * Math.max(high, 1e-9)) [low, high] = [Math.min(low, level), Math.max(high, level)];
          return log ? uPlot.rangeLog(low * 0.7, high * 1.3, 10, false) : uPlot.rangeNum(low, high, 0.08, true);
        },
      },
    },
    axes: [
      { ...axis, size: 26, space: 70, label: "step", labelSize: 14, labelGap: 0, labelFont: font, values: (_, ticks) => ticks.map((t) => (Number.isInteger(t) ? short(t) : "")) },
      {
        ...axis,
        size: 58,
        ...(label ? { label, labelSize: 16, labelGap: 0, labelFont: font } : {}),
        values: (_, ticks) => ticks.map((t) => (t === null ? "" : log && !isPower(t) ? "" : amount(t, unit))),
      },
    ],
    series: [
      {},
      ...lines.map((line): uPlot.Series => ({
        stroke: line.kind === "aside" ? css("--aside") : line.color,
        width: line.kind === "aside" ? 1 : 1.5,
        alpha: means.length && !line.kind ? 0.28 : 1,
        dash: line.kind === "aside" ? [5, 4] : undefined,
        points: { show: line.kind === "points" || (!line.kind && line.data.steps.length < 30), size: 5, fill: line.color },
        paths: line.kind === "points" && line.name !== "loss.eval" ? () => null : undefined,
        spanGaps: false,
      })),
      ...means.map((line): uPlot.Series => ({ stroke: line.color, width: 2, points: { show: false } })),
    ],
    hooks: {
      setSelect: [
        (u) => {
          if (u.select.width < 4) return;
          const low = u.posToVal(u.select.left, "x");
          const high = u.posToVal(u.select.left + u.select.width, "x");
          u.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
          view.setRange([low, high]);
        },
      ],
      setCursor: [
        (u) => {
          const left = u.cursor.left ?? -1;
          view.setHover(left < 0 ? null : Math.round(u.posToVal(left, "x")));
        },
      ],
      ready: [
        (u) => {
          u.over.addEventListener(
            "wheel",
            (event) => {
              // Plain scrolling belongs to the page; with Ctrl (or a pinch) or Shift it zooms.
              if (!event.ctrlKey && !event.shiftKey) return;
              event.preventDefault();
              const turn = event.deltaY || event.deltaX;
              view.zoom(turn > 0 ? 1.25 : 0.8, u.posToVal(event.clientX - u.over.getBoundingClientRect().left, "x"));
            },
            { passive: false },
          );
        },
      ],
      draw: [(u) => decorate(u, lines, view, latest.current)],
    },
  };
}

const isPower = (value: number) => Math.abs(Math.log10(value) - Math.round(Math.log10(value))) < 1e-6;
const short = (step: number) => (step >= 1e6 ? `${step / 1e6} M` : step >= 1e4 ? `${step / 1e3} k` : String(step));

/** Clipped steps at the foot, non-finite values at the head, findings as vertical lines, ln V. */
function decorate(u: uPlot, lines: Drawn[], view: View, props: Props) {
  const { ctx } = u;
  const { left, top, width, height } = u.bbox;
  const ratio = devicePixelRatio || 1;
  const at = (step: number) => u.valToPos(step, "x", true);
  ctx.save();
  ctx.beginPath();
  ctx.rect(left, top, width, height);
  ctx.clip();
  ctx.font = `${11 * ratio}px ${css("--sans")}`;
  // What is written already: where two names would lie on each other, the legend alone has the second one.
  const written: { left: number; right: number; y: number }[] = [];
  if (props.level) {
    const y = u.valToPos(props.level.value, "y", true);
    ctx.strokeStyle = ctx.fillStyle = css("--muted");
    ctx.setLineDash([2 * ratio, 3 * ratio]);
    line(ctx, left, y, left + width, y);
    ctx.textAlign = "right";
    const right = left + width - 4 * ratio;
    const base = y + (y - top < 20 * ratio ? 13 : -5) * ratio;
    ctx.fillText(props.level.label, right, base);
    written.push({ left: right - ctx.measureText(props.level.label).width, right, y: base });
    ctx.textAlign = "left";
  }
  // The rungs of the ladder say which they are, at their right end.
  ctx.fillStyle = css("--aside");
  for (const rung of lines) {
    const value = rung.kind === "aside" && props.ladder ? valueAt(rung.data, view.shown[1]) : null;
    if (value === null) continue;
    // A rung that was measured for a while only is named where it ends.
    const end = at(rung.data.steps[rung.data.steps.length - 1]);
    const inside = end < left + width * 0.8;
    ctx.textAlign = inside ? "left" : "right";
    const place = [inside ? end + 5 * ratio : left + width - 4 * ratio, u.valToPos(value, "y", true) + (inside ? 4 : -5) * ratio] as const;
    const room = ctx.measureText(rung.label).width;
    const box = { left: inside ? place[0] : place[0] - room, right: inside ? place[0] + room : place[0], y: place[1] };
    if (written.some((one) => one.left < box.right && box.left < one.right && Math.abs(one.y - box.y) < 11 * ratio)) continue;
    written.push(box);
    ctx.strokeStyle = css("--panel");
    ctx.lineWidth = 4 * ratio;
    ctx.strokeText(rung.label, ...place);
    ctx.fillText(rung.label, ...place);
  }
  ctx.textAlign = "left";
  if (props.clipped) {
    const { steps, values } = props.clipped;
    ctx.fillStyle = css("--clip");
    steps.forEach((step, i) => {
      const share = values[i] ?? 0;
      if (!share) return;
      const x = at(step);
      const next = i + 1 < steps.length ? at(steps[i + 1]) : x + 2 * ratio;
      ctx.globalAlpha = 0.25 + 0.75 * share;
      ctx.fillRect(Math.floor(x), top + height - 5 * ratio, Math.max(ratio, Math.ceil(next - Math.floor(x))), 5 * ratio);
    });
    ctx.globalAlpha = 1;
  }
  ctx.setLineDash([]);
  ctx.fillStyle = ctx.strokeStyle = css("--sick");
  const bad = lines.flatMap((entry) => entry.data.bad ?? []);
  bad.forEach(([step]) => ctx.fillRect(at(step) - ratio, top, 2 * ratio, 8 * ratio));
  if (bad.length) ctx.fillText(bad[0][1], Math.min(at(bad[0][0]) + 4 * ratio, left + width - 30 * ratio), top + 18 * ratio);
  for (const mark of props.marks ?? []) {
    const strong = view.focus?.chart === props.id && view.focus.step === mark.step;
    ctx.globalAlpha = strong ? 1 : 0.55;
    ctx.lineWidth = (strong ? 2 : 1) * ratio;
    ctx.setLineDash([4 * ratio, 3 * ratio]);
    const x = at(mark.step) + ratio;
    line(ctx, x, top, x, top + height);
    if (strong) {
      const room = ctx.measureText(mark.label).width;
      const flip = x + room + 12 * ratio > left + width;
      ctx.fillText(mark.label, flip ? x - room - 6 * ratio : x + 6 * ratio, top + 14 * ratio);
    }
  }
  ctx.restore();
}

function line(ctx: CanvasRenderingContext2D, x1: number, y1: number, x2: number, y2: number) {
  ctx.beginPath();
  ctx.moveTo(x1, y1);
  ctx.lineTo(x2, y2);
  ctx.stroke();
}
