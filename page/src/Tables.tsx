import { Fragment } from "preact";
import { moment, number, seconds, words } from "./format";
import type { Exam, Run } from "./types";

export function Exams({ exams }: { exams: Exam[] }) {
  if (!exams.length) return <p class="empty small">No test has been made yet. Tests run when a check asks for one and the budget allows it.</p>;
  return (
    <div class="scroll">
      <table class="exams">
        <thead>
          <tr>
            <th>Test</th>
            <th>outcome</th>
            <th class="n">step</th>
            <th>result</th>
            <th class="n">took</th>
          </tr>
        </thead>
        <tbody>
          {exams.map((exam, i) => (
            <tr key={i}>
              <td>{words(exam.exam)}</td>
              <td>
                <span class={`chip ${exam.outcome}`}>{exam.outcome === "refused" ? "not possible" : exam.outcome}</span>
              </td>
              <td class="n">{number(exam.step)}</td>
              <td>
                {exam.reason || <Numbers values={exam.values} />}
              </td>
              <td class="n">{exam.seconds ? seconds(exam.seconds) : "–"}</td>
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

/** The plain numbers at once, what is nested on request. */
function Numbers({ values }: { values: Record<string, unknown> }) {
  // The step has its own column.
  const entries = Object.entries(values).filter(([key]) => key !== "step");
  const plain = entries.filter(([, v]) => v === null || typeof v !== "object");
  const nested = entries.filter(([, v]) => v !== null && typeof v === "object");
  return (
    <div class="pairs">
      <>
        {plain.slice(0, 6).map(([key, value]) => (
          <span key={key}>
            {words(key)} <b>{number(value)}</b>
          </span>
        ))}
      </>
      {(nested.length > 0 || plain.length > 6) && (
        <details>
          <summary>all numbers</summary>
          <Tree value={values} />
        </details>
      )}
    </div>
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

export function Settings({ run }: { run: Run }) {
  const named = (names: string[]) => names.filter((name) => name in run.facts);
  const known = new Set([...SETTINGS, ...LONG, "env", "text.samples", "verdict"]);
  const others = Object.keys(run.facts).filter((name) => !known.has(name)).sort();
  const show = (name: string) => (
    <div key={name}>
      <dt>{name}</dt>
      <dd>
        <Tree value={run.facts[name]} />
      </dd>
    </div>
  );
  return (
    <div class="columns">
      <section>
        <h2 id="settings">Settings</h2>
        {named(SETTINGS).length ? <dl class="facts">{named(SETTINGS).map(show)}</dl> : <p class="empty small">Not recorded.</p>}
        {named(LONG).map((name) => (
          <details key={name} class="long">
            <summary>{words(name.replace(".", " "))}</summary>
            {typeof run.facts[name] === "string" ? <pre>{String(run.facts[name])}</pre> : <Parameters value={run.facts[name]} />}
          </details>
        ))}
      </section>
      <section>
        <h2 id="environment">Environment</h2>
        <dl class="facts">
          {"env" in run.facts ? show("env") : <p class="empty small">Not recorded.</p>}
          <div>
            <dt>recorded</dt>
            <dd>{moment(run.created)}</dd>
          </div>
          {others.map(show)}
        </dl>
        {run.notes.length > 0 && (
          <>
            <h3>Notes of the recorder</h3>
            <ul class="notes">
              {run.notes.map((note, i) => (
                <li key={i} class={note.level}>
                  <time>{moment(note.time)}</time> {note.text}
                </li>
              ))}
            </ul>
          </>
        )}
      </section>
    </div>
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
