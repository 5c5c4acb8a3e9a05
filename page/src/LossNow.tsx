import { number } from "./format";
import type { Loss } from "./types";

const BAD: Record<string, string> = { NaN: "NaN", inf: "∞", "-inf": "−∞" };

/** The latest loss, in as many digits as `traindoctor runs` gives; what is not a number stands out. */
export function LossNow({ loss }: { loss: Loss }) {
  if (typeof loss.value === "number") return <span class="plain loss">loss {number(Number(loss.value.toPrecision(4)))}</span>;
  return (
    <span class="plain loss bad">
      loss {BAD[loss.value] ?? loss.value}
      {loss.bad_since !== null && ` since step ${number(loss.bad_since)}`}
    </span>
  );
}
