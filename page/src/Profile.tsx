import { number } from "./format";
import { columnAt } from "./HeatMap";
import type { Heat } from "./types";
import { useHover, type View } from "./view";

const WIDTH = 600;
const HEIGHT = 110;

/** One number per layer, from input to output: at the first and at the hovered (or last) step. */
export function Profile({ heat, view }: { heat: Heat; view: View }) {
  const hover = useHover(view);
  const now = columnAt(heat, hover);
  const columns = now === 0 ? [0] : [0, now];
  const logs = columns.map((c) => heat.values.map((row) => (row[c] > 0 && Number.isFinite(row[c]) ? Math.log10(row[c]) : null)));
  const finite = logs.flat().filter((v): v is number => v !== null);
  if (heat.layers.length < 2 || !finite.length) return null;
  const low = Math.floor(Math.min(...finite));
  const high = Math.max(low + 1, Math.ceil(Math.max(...finite)));
  const y = (v: number) => 8 + (1 - (v - low) / (high - low)) * (HEIGHT - 16);
  const x = (i: number) => (i / (heat.layers.length - 1)) * WIDTH;
  const path = (values: (number | null)[]) => {
    let pen = "M";
    return values
      .map((v, i) => {
        if (v === null) {
          pen = "M";
          return "";
        }
        const move = `${pen}${x(i).toFixed(1)} ${y(v).toFixed(1)}`;
        pen = "L";
        return move;
      })
      .join("");
  };
  return (
    <div class="profile">
      <div class="scale" aria-hidden="true">
        <span>{number(10 ** high)}</span>
        <span>{number(10 ** low)}</span>
      </div>
      <svg viewBox={`0 0 ${WIDTH} ${HEIGHT}`} preserveAspectRatio="none" role="img" aria-label="Gradient of each layer, first layer at the left">
        {logs.map((values, i) => (
          <path key={i} class={i || columns.length === 1 ? "now" : "first"} d={path(values)} vector-effect="non-scaling-stroke" />
        ))}
      </svg>
      <p>
        <span class="first">first measured, step {heat.steps[0]}</span> <span class="now">step {heat.steps[now]}</span>
        <span class="ends">input side → output side</span>
      </p>
    </div>
  );
}
