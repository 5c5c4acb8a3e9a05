import { useMemo } from "preact/hooks";
import { css } from "./theme";
import type { Heat } from "./types";

// A label needs so much; of more rows every second or third is named.
export const LABEL_PX = 15;

/** The names of the rows, as text: found by a search of the page, read aloud, cut at their beginning. */
export function Labels({ heat, gutter, height, row }: { heat: Heat; gutter: number; height: number; row: number | null }) {
  const rows = heat.layers.length;
  const each = Math.max(1, Math.ceil((rows * LABEL_PX) / height - 0.01));
  const names = useMemo(() => shortened(heat.layers, gutter - 8), [heat.layers, gutter]);
  return (
    <ol class="rows">
      {heat.layers.map((layer, r) => {
        if (r % each && r !== row) return null;
        const top = `${((r + 0.5) / rows) * height - LABEL_PX / 2}px`;
        return (
          <li key={layer + r} style={{ top, width: `${gutter - 6}px` }} class={r === row ? "now" : ""} title={named(layer)}>
            {layer ? names[r] : named(layer)}
            {heat.absent[layer] && <em style={{ left: `${gutter + 6}px` }}>{heat.absent[layer]}</em>}
          </li>
        );
      })}
    </ol>
  );
}

/** A module without a name is the model itself. */
export const named = (layer: string) => layer || "(whole model)";

const measuring = document.createElement("canvas").getContext("2d")!;

/** What all names share tells nothing; the number of a layer and the end of its name tell most. */
function shortened(layers: string[], room: number): string[] {
  measuring.font = `11px ${css("--mono")}`;
  const fits = (name: string) => measuring.measureText(name).width <= room;
  const lead = layers.every(fits) ? "" : shared(layers);
  return layers.map((layer) => {
    let name = layer.slice(lead.length);
    if (!fits(name)) name = name.replace(/\.weight$/, "");
    const parts = name.split(".");
    let end = parts.pop()!;
    // "bias" alone says nothing: whose it is goes with it.
    if (end === "bias" && parts.length && !/^\d+$/.test(parts[parts.length - 1])) end = `${parts.pop()}.bias`;
    parts.push(end);
    for (let at = 0; !fits(parts.join(".")) && at < parts.length - 1; ) {
      if (/^\d+$/.test(parts[at])) at++;
      else parts.splice(at, 1);
    }
    parts.pop();
    const begin = parts.map((part) => `${part}.`).join("");
    if (fits(begin + end)) return begin + end;
    while (end.length > 3 && !fits(`${begin}…${end}`)) end = end.slice(1);
    return `${begin}…${end}`;
  });
}

/** The modules that all names begin with: "model." of a wrapped model. */
function shared(layers: string[]): string {
  const first = layers[0]?.split(".").slice(0, -1) ?? [];
  let depth = 0;
  while (depth < first.length && layers.every((layer) => layer.split(".")[depth] === first[depth] && layer.split(".").length > depth + 1)) depth++;
  return depth ? `${first.slice(0, depth).join(".")}.` : "";
}
