import { Fragment } from "preact";
import { moment, number, seconds, words } from "./format";
import type { Exam, Run } from "./types";

const OUTCOME: Record<Exam["outcome"], string> = { done: "measured", refused: "not possible", "not-applicable": "does not apply", failed: "failed" };

/** What the tests of recorded steps measured, whatever follows from it. */
export function Exams({ exams }: { exams: Exam[] }) {
  return (
    <table class="exams">
      <thead>
        <tr>
          <th>Test</th>
          <th>result</th>
          <th class="n">value</th>
          <th class="n">expected</th>
          <th class="n">noise</th>
          <th class="n">step</th>
          <th class="n">took</th>
        </tr>
      </thead>
      <tbody>
        {exams.map((exam, i) => (
          <tr key={i}>
            <td>{exam.title ?? words(exam.exam)}</td>
            <td>
              {exam.outcome === "done" ? (exam.measured?.text ?? "measured") : <span class="plain">{OUTCOME[exam.outcome]}</span>}
              {exam.reason && <>{": "}{exam.reason}</>}
              {exam.outcome === "done" && <Numbers values={exam.values} />}
            </td>
            <td class="n strong" data-label="value">{number(exam.measured?.value)}</td>
            <td class="n" data-label="expected">{number(exam.measured?.expected)}</td>
            <td class="n" data-label="noise">{number(exam.measured?.noise)}</td>
            <td class="n" data-label="step">{number(exam.step)}</td>
            <td class="n" data-label="took">{exam.seconds ? seconds(exam.seconds) : "–"}</td>
          </tr>
        ))}
      </tbody>
    </table>
  );
}

function Numbers({ values }: { values: Record<string, unknown> }) {
  if (!Object.keys(values).length) return null;
  return (
    <details class="numbers">
      <summary>all numbers</summary>
      <Tree value={values} />
    </details>
  );
}

/** Any recorded value, nested as it is. */
export function Tree({ value, depth = 0 }: { value: unknown; depth?: number }) {
  if (value === null || typeof value !== "object") return <span class="value">{number(value)}</span>;
  if (Array.isArray(value) && value.every((v) => v === null || typeof v !== "object")) {
    return <span class="value">{value.length ? value.map(number).join(", ") : "none"}</span>;
  }
  const entries = Object.entries(value);
  if (!entries.length) return <span class="value">none</span>;
  if (depth > 6) return <span class="value">{JSON.stringify(value)}</span>;
  return (
    <dl class="tree">
      {entries.map(([key, item]) => (
        <div key={key} class={isNested(item) ? "nested" : ""}>
          <dt>{key}</dt>
          <dd>
            <Tree value={item} depth={depth + 1} />
          </dd>
        </div>
      ))}
    </dl>
  );
}

const isNested = (value: unknown) => value !== null && typeof value === "object" && Object.values(value).length > 0 && !(Array.isArray(value) && value.every((v) => v === null || typeof v !== "object"));

export function Samples({ samples }: { samples: unknown }) {
  const list = Array.isArray(samples) ? samples : samples ? [samples] : [];
  return (
    <div class="samples">
      {[...list].reverse().map((sample, i) => {
        const item = (typeof sample === "object" && sample !== null ? sample : { text: String(sample) }) as Record<string, unknown>;
        const { step, prompt, text, sample: other, ...more } = item;
        const extra = Object.entries(more).filter(([, v]) => typeof v !== "object");
        return (
          <figure class="panel" key={i}>
            <figcaption>
              {step !== undefined && <span>step {number(step)}</span>}
              {extra.map(([key, value]) => (
                <span key={key}>
                  {words(key)} {number(value)}
                </span>
              ))}
            </figcaption>
            <p>
              {prompt ? <b>{String(prompt)}</b> : null}
              {String(text ?? other ?? "")}
            </p>
          </figure>
        );
      })}
    </div>
  );
}

const SETTINGS = ["settings", "config", "script", "optimizer.groups", "optimizer.coverage", "schedule", "loss.site", "input.site"];
const LONG = ["model.tree", "model.parameters"];

/** Facts of a run by the headings under which a reader looks for them. */
export function factsOf(run: Run) {
  const has = (names: string[]) => names.filter((name) => name in run.facts);
  const known = new Set([...SETTINGS, ...LONG, "env", "text.samples", "verdict"]);
  return {
    settings: has(SETTINGS),
    long: has(LONG),
    environment: has(["env"]),
    others: Object.keys(run.facts).filter((name) => !known.has(name)).sort(),
  };
}

export function Facts({ run, names, long = [] }: { run: Run; names: string[]; long?: string[] }) {
  return (
    <>
      <dl class="facts">
        {names.map((name) => (
          <div key={name}>
            <dt>{name}</dt>
            <dd>
              <Tree value={run.facts[name]} />
            </dd>
          </div>
        ))}
      </dl>
      {long.map((name) => (
        <details key={name} class="long">
          <summary>{words(name.replace(".", " "))}</summary>
          {typeof run.facts[name] === "string" ? <pre tabIndex={0}>{String(run.facts[name])}</pre> : <Parameters value={run.facts[name]} />}
        </details>
      ))}
    </>
  );
}

export function Notes({ run }: { run: Run }) {
  return (
    <ul class="notes">
      {run.notes.map((note, i) => (
        <li key={i} class={note.level}>
          <time>{moment(note.time)}</time> {note.text}
        </li>
      ))}
    </ul>
  );
}

/** A list of like objects is a table. */
function Parameters({ value }: { value: unknown }) {
  if (!Array.isArray(value) || !value.every((v) => v && typeof v === "object")) return <Tree value={value} />;
  const keys = [...new Set(value.flatMap((v) => Object.keys(v as object)))].slice(0, 8);
  return (
    <div class="scroll">
      <table>
        <thead>
          <tr>{keys.map((key) => <th key={key}>{key}</th>)}</tr>
        </thead>
        <tbody>
          {value.map((item, i) => (
            <tr key={i}>
              {keys.map((key) => {
                const cell = (item as Record<string, unknown>)[key];
                return <td key={key}>{Array.isArray(cell) ? cell.join(" × ") : <Fragment>{number(cell)}</Fragment>}</td>;
              })}
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}
