import { useState } from "preact/hooks";
import { inline } from "./Markdown";
import type { Cause, Verdict } from "./types";

type Result = "fail" | "pass" | "not tested" | "does not apply";

interface Line {
  result: Result;
  cause: string;
  title: string;
  why: string;
  command?: string | null;
}

const ORDER: Result[] = ["fail", "not tested", "pass", "does not apply"];
// Enough to see what there is; the rest comes on request.
const SHOWN = 12;

/** One row for each fault that traindoctor looks for: what came out, and how that is known. */
export function lines(verdict: Verdict): Line[] {
  const found = (one: Cause, cost: string): Line => {
    const more = [one.status !== "confirmed" && one.status, cost].filter(Boolean).join("; ");
    return { result: "fail", cause: one.cause, title: one.title ?? one.cause, why: `${one.summary ?? "found"}${more && ` (${more})`}` };
  };
  // A run that is slow or takes too much memory may be healthy all the same.
  const fail = [...(verdict.causes ?? []).map((one) => found(one, "")), ...(verdict.advice ?? []).map((one) => found(one, "costs time or memory, not learning"))];
  const rest = [
    ...(verdict.untested ?? []).map((one): Line => ({ result: "not tested", cause: one.cause, title: one.title ?? one.cause, why: one.sentence, command: one.command })),
    ...(verdict.ruled_out ?? []).map((one): Line => ({ result: "pass", cause: one.cause, title: one.title ?? one.cause, why: one.by })),
    ...(verdict.not_applicable ?? []).map((one): Line => ({ result: "does not apply", cause: one.cause, title: one.title ?? one.cause, why: one.sentence })),
  ];
  return [...fail, ...rest];
}

export function Tests({ verdict }: { verdict: Verdict }) {
  const all = lines(verdict);
  const [only, setOnly] = useState<Result | null>(null);
  const [whole, setWhole] = useState(false);
  if (!all.length) return <p class="empty small">No test has been made yet. Tests run while the script trains, within the budget.</p>;
  const wanted = all.filter((line) => only === null || line.result === only);
  const shown = whole ? wanted : wanted.slice(0, SHOWN);
  return (
    <>
      <div class="filters" role="group" aria-label="Which tests to show">
        <button type="button" aria-pressed={only === null} onClick={() => setOnly(null)}>
          all <b>{all.length}</b>
        </button>
        {ORDER.map((result) => {
          const count = all.filter((line) => line.result === result).length;
          return (
            <button type="button" key={result} class={className(result)} aria-pressed={only === result} disabled={!count} onClick={() => setOnly(only === result ? null : result)}>
              {result} <b>{count}</b>
            </button>
          );
        })}
      </div>
      <table class="tests">
        <thead>
          <tr>
            <th>Result</th>
            <th>Looked for</th>
            <th>How it is known</th>
          </tr>
        </thead>
        <tbody>
          {shown.map((line) => (
            <tr key={line.cause}>
              <td>
                <span class={`chip ${className(line.result)}`}>{line.result}</span>
              </td>
              <td>
                {line.title}
                <code>{line.cause}</code>
              </td>
              <td class="why">
                {inline(line.why)}
                {line.command && <code class="command">{line.command}</code>}
              </td>
            </tr>
          ))}
        </tbody>
      </table>
      {wanted.length > SHOWN && (
        <button type="button" class="link" onClick={() => setWhole(!whole)}>
          {whole ? `Show the first ${SHOWN}` : `Show all ${wanted.length}`}
        </button>
      )}
    </>
  );
}

const className = (result: Result) => result.replaceAll(" ", "-");
