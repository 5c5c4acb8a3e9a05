import { useEffect, useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";
import type { LayerSpec } from "./charts";
import { BAD, scaleOf, type Scale } from "./colors";
import { number, steps as stepsOf } from "./format";
import { LABEL_PX, Labels, named } from "./Labels";
import { Profile } from "./Profile";
import type { Source } from "./source";
import { css, type Theme } from "./theme";
import type { Heat, Run } from "./types";
import { onKey, useHover, useRange, type View } from "./view";

interface Props {
  spec: LayerSpec;
  run: Run;
  rank: number;
  source: Source;
  view: View;
  theme: Theme;
  /** Changes as the run goes on. */
  tick: number;
  /** Stands in a frame that has the title already. */
  framed?: boolean;
}

const COLUMNS = 260;
const MOST_HEIGHT = 520;
const LIVE_MS = 1500;

export function HeatMap({ spec, run, rank, source, view, theme, tick, framed }: Props) {
  const stats = spec.stats.filter((stat) => run.layers[stat.name]?.measured);
  const [chosen, choose] = useState(stats[0]?.name);
  const stat = stats.find((s) => s.name === chosen) ?? stats[0];
  const rows = spec.rows ?? "layers";
  const [filter, setFilter] = useState("");
  const figure = useRef<HTMLElement>(null);
  const near = useNear(figure);
  const range = useRange(view);
  const heat = useHeat(source, run.name, rank, stat?.name, stat?.keep ?? "max", range, tick, near);
  const shown = useMemo(() => filtered(heat, filter), [heat, filter]);
  const scale = useMemo(() => (shown && stat ? scaleOf(stat, shown, theme) : null), [shown, stat, theme]);
  const [row, setRow] = useState<number | null>(null);

  const onArrow = (event: KeyboardEvent) => {
    if (event.target !== event.currentTarget) return;
    if (shown && (event.key === "ArrowUp" || event.key === "ArrowDown")) {
      event.preventDefault();
      const next = (row ?? -1) + (event.key === "ArrowDown" ? 1 : -1);
      setRow(Math.min(Math.max(next, 0), shown.layers.length - 1));
    } else onKey(view, event);
  };

  return (
    <figure class={`heat ${framed ? "" : "panel"}`} id={`chart-${spec.id}`} ref={figure} tabIndex={0} aria-label={`${spec.title}. ${spec.about}`} onKeyDown={onArrow}>
      <figcaption>
        {framed ? <span /> : <h3>{spec.title}</h3>}
        <div class="controls">
          {stats.length > 1 && (
            <select aria-label={`What to show of ${spec.title}`} value={stat?.name} onChange={(e) => choose(e.currentTarget.value)}>
              {stats.map((s) => (
                <option key={s.name} value={s.name}>
                  {s.label}
                </option>
              ))}
            </select>
          )}
          <input type="search" placeholder={`filter ${rows}`} aria-label={`Filter ${rows} of ${spec.title}`} value={filter} onInput={(e) => setFilter(e.currentTarget.value)} />
        </div>
      </figcaption>
      {shown && scale && shown.steps.length > 0 && shown.layers.length > 0 ? (
        <>
          <Reading heat={shown} view={view} row={row} scale={scale} rows={rows} />
          <Canvas heat={shown} scale={scale} view={view} theme={theme} row={row} setRow={setRow} />
          {spec.profile && stat === stats[0] && <Profile heat={shown} view={view} />}
        </>
      ) : (
        <p class="empty small">{heat ? (filter ? `None of the ${rows} has this in its name.` : "Nothing was measured in this window.") : "Reading…"}</p>
      )}
      <p class="about">{spec.about}</p>
    </figure>
  );
}

/** True once the element has come near the screen: pictures below the fold wait. */
function useNear(element: { current: HTMLElement | null }): boolean {
  const [near, setNear] = useState(false);
  useEffect(() => {
    const watcher = new IntersectionObserver(
      (entries) => {
        if (entries.some((entry) => entry.isIntersecting)) {
          setNear(true);
          watcher.disconnect();
        }
      },
      { rootMargin: "300px" },
    );
    watcher.observe(element.current!);
    return () => watcher.disconnect();
  }, []);
  return near;
}

function useHeat(source: Source, run: string, rank: number, name: string | undefined, keep: string, range: [number, number] | null, tick: number, near: boolean): Heat | null {
  const [heat, setHeat] = useState<Heat | null>(null);
  const last = useRef({ key: "", time: 0 });
  const key = `${run}/${rank}/${name}/${range}`;
  useEffect(() => {
    if (!near || !name) return;
    const fresh = last.current.key !== key;
    const wait = fresh ? 40 : Math.max(0, last.current.time + LIVE_MS - performance.now());
    let current = true;
    const timer = setTimeout(async () => {
      last.current = { key, time: performance.now() };
      try {
        const found = await source.layers(run, rank, name, range, COLUMNS, keep);
        if (current) setHeat(found);
      } catch {
        // A record in trouble is told at the head of the page; the last picture stays.
      }
    }, wait);
    return () => {
      current = false;
      clearTimeout(timer);
    };
  }, [key, keep, near, tick]);
  return heat;
}

function filtered(heat: Heat | null, filter: string): Heat | null {
  if (!heat || !filter.trim()) return heat;
  const wanted = filter.trim().toLowerCase();
  const keep = heat.layers.map((_, i) => i).filter((i) => named(heat.layers[i]).toLowerCase().includes(wanted));
  return { steps: heat.steps, absent: heat.absent, layers: keep.map((i) => heat.layers[i]), values: keep.map((i) => heat.values[i]) };
}

export function columnAt(heat: Heat, step: number | null): number {
  if (step === null) return heat.steps.length - 1;
  let low = 0;
  let high = heat.steps.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (heat.steps[middle] <= step) low = middle + 1;
    else high = middle;
  }
  return Math.max(0, low - 1);
}

function Reading({ heat, view, row, scale, rows }: { heat: Heat; view: View; row: number | null; scale: Scale; rows: string }) {
  const hover = useHover(view);
  const column = columnAt(heat, hover);
  const value = row === null ? null : heat.values[row]?.[column];
  return (
    <div class="reading">
      <span class="where">
        {row === null || heat.layers[row] === undefined ? (
          `${heat.layers.length} ${rows} at ${stepsOf(heat.steps.length)}`
        ) : (
          <>
            <code>{named(heat.layers[row])}</code> step {heat.steps[column]?.toLocaleString("en-US")}: <b>{Number.isNaN(value) ? (heat.absent[heat.layers[row]] ?? "not measured") : number(value)}</b>
          </>
        )}
      </span>
      <ColorBar scale={scale} />
    </div>
  );
}

function ColorBar({ scale }: { scale: Scale }) {
  const canvas = useRef<HTMLCanvasElement>(null);
  useLayoutEffect(() => {
    const ctx = canvas.current!.getContext("2d")!;
    for (let x = 0; x < 90; x++) {
      const share = x / 89;
      const [low, high] = scale.ends;
      const logarithmic = low > 0 && high / low > 20;
      ctx.fillStyle = `rgb(${scale.color(logarithmic ? low * (high / low) ** share : low + (high - low) * share)})`;
      ctx.fillRect(x, 0, 1, 8);
    }
  }, [scale]);
  return (
    <span class="bar" aria-hidden="true">
      {number(Number(scale.ends[0].toPrecision(2)))}
      <canvas ref={canvas} width={90} height={8} />
      {number(Number(scale.ends[1].toPrecision(2)))}
    </span>
  );
}

interface CanvasProps {
  heat: Heat;
  scale: Scale;
  view: View;
  theme: Theme;
  row: number | null;
  setRow(row: number | null): void;
}

function Canvas({ heat, scale, view, theme, row, setRow }: CanvasProps) {
  const box = useRef<HTMLDivElement>(null);
  const canvas = useRef<HTMLCanvasElement>(null);
  const [width, setWidth] = useState(0);
  const range = useRange(view);
  const hover = useHover(view);
  const drag = useRef<number | null>(null);
  const [to, setTo] = useState<number | null>(null);
  const gutter = Math.round(Math.min(width * 0.36, 200));
  const rows = heat.layers.length;
  const height = Math.round(Math.min(Math.max(rows * LABEL_PX, 48), MOST_HEIGHT));
  const [low, high] = view.shown;
  const x = (step: number) => gutter + ((step - low) / (high - low || 1)) * (width - gutter);
  const stepAt = (px: number) => low + ((px - gutter) / (width - gutter || 1)) * (high - low);

  useLayoutEffect(() => {
    const host = box.current!;
    const resize = new ResizeObserver(() => setWidth(host.clientWidth));
    resize.observe(host);
    return () => resize.disconnect();
  }, []);

  useLayoutEffect(() => {
    if (!width) return;
    const ratio = devicePixelRatio || 1;
    const target = canvas.current!;
    target.width = width * ratio;
    target.height = height * ratio;
    const ctx = target.getContext("2d")!;
    ctx.scale(ratio, ratio);
    paint(ctx, heat, scale, { gutter, width, height, x, end: view.end });
  }, [heat, scale, theme, width, height, range, view.end]);

  const place = (event: MouseEvent) => {
    const frame = box.current!.getBoundingClientRect();
    return { px: event.clientX - frame.left, py: event.clientY - frame.top };
  };
  const move = (event: MouseEvent) => {
    const { px, py } = place(event);
    view.setHover(px < gutter ? null : Math.round(Math.min(Math.max(stepAt(px), low), high)));
    setRow(Math.min(rows - 1, Math.max(0, Math.floor((py / height) * rows))));
    if (drag.current !== null) setTo(px);
  };
  const up = (event: MouseEvent) => {
    const from = drag.current;
    const { px } = place(event);
    drag.current = null;
    setTo(null);
    if (from !== null && Math.abs(px - from) > 6) view.setRange([stepAt(Math.min(from, px)), stepAt(Math.max(from, px))]);
  };
  return (
    <div
      class="cells"
      ref={box}
      style={{ height: `${height}px` }}
      onMouseMove={move}
      onMouseDown={(e) => (drag.current = place(e).px)}
      onMouseUp={up}
      onMouseLeave={() => {
        drag.current = null;
        setTo(null);
        setRow(null);
        view.setHover(null);
      }}
      onDblClick={() => view.setRange(null)}
    >
      <Labels heat={heat} gutter={gutter} height={height} row={row} />
      <canvas ref={canvas} style={{ width: `${width}px`, height: `${height}px` }} />
      {hover !== null && hover >= low && hover <= high && <i class="cursor" style={{ left: `${x(hover)}px` }} />}
      {row !== null && <i class="row" style={{ top: `${(row / rows) * height}px`, height: `${Math.max(2, height / rows)}px`, left: `${gutter}px` }} />}
      {drag.current !== null && to !== null && (
        <i class="brush" style={{ left: `${Math.min(drag.current, to)}px`, width: `${Math.abs(to - drag.current)}px` }} />
      )}
    </div>
  );
}

interface Frame {
  gutter: number;
  width: number;
  height: number;
  x(step: number): number;
  end: number;
}

function paint(ctx: CanvasRenderingContext2D, heat: Heat, scale: Scale, frame: Frame) {
  const { gutter, width, height, x } = frame;
  const columns = heat.steps.length;
  const rows = heat.layers.length;
  const image = new ImageData(columns, rows);
  for (let r = 0; r < rows; r++)
    for (let c = 0; c < columns; c++) {
      const value = heat.values[r][c];
      if (Number.isNaN(value)) continue;
      const [red, green, blue] = Number.isFinite(value) ? scale.color(value) : BAD;
      image.data.set([red, green, blue, 255], (r * columns + c) * 4);
    }
  const cells = document.createElement("canvas");
  [cells.width, cells.height] = [columns, rows];
  cells.getContext("2d")!.putImageData(image, 0, 0);
  ctx.imageSmoothingEnabled = false;
  ctx.save();
  ctx.beginPath();
  ctx.rect(gutter, 0, width - gutter, height);
  ctx.clip();
  const usual = columns > 1 ? (heat.steps[columns - 1] - heat.steps[0]) / (columns - 1) : frame.end;
  const end = x(heat.steps[columns - 1] + usual);
  // What has no number stays hatched: a row without gradient is a finding, not a hole in the picture.
  ctx.fillStyle = hatching(ctx);
  ctx.fillRect(x(heat.steps[0]), 0, end - x(heat.steps[0]), height);
  for (let c = 0; c < columns; c++) {
    const left = x(heat.steps[c]);
    const right = x(c + 1 < columns ? heat.steps[c + 1] : heat.steps[c] + usual);
    if (right > gutter && left < width) ctx.drawImage(cells, c, 0, 1, rows, left, 0, Math.max(1, right - left + 0.5), height);
  }
  ctx.restore();
}

function hatching(ctx: CanvasRenderingContext2D): CanvasPattern {
  const tile = document.createElement("canvas");
  [tile.width, tile.height] = [8, 8];
  const pen = tile.getContext("2d")!;
  pen.fillStyle = css("--panel");
  pen.fillRect(0, 0, 8, 8);
  pen.strokeStyle = css("--aside");
  pen.lineWidth = 1;
  for (const shift of [-8, 0, 8]) {
    pen.beginPath();
    pen.moveTo(shift, 8);
    pen.lineTo(shift + 8, 0);
    pen.stroke();
  }
  return ctx.createPattern(tile, "repeat")!;
}
