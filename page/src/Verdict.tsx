import { number } from "./format";
import { Markdown } from "./Markdown";
import type { Cause, Run, Symptom, Verdict as VerdictData } from "./types";

interface Props {
  run: Run;
  /** Goes to the plot of a cause, at its step; null when no plot shows it. */
  show: ((cause: Cause) => void) | null;
}

const HEADLINE = { healthy: "Healthy", sick: "Sick", inconclusive: "Inconclusive", running: "Running" };

export function Verdict({ run, show }: Props) {
  const verdict = run.verdict;
  if (!verdict) {
    return (
      <section class="verdict waiting" aria-live="polite" id="verdict">
        <p class="kind">No verdict yet</p>
        <p class="reason">{run.steps ? "The record is being examined." : "Waiting for the first step."}</p>
      </section>
    );
  }
  const causes = verdict.causes ?? [];
  const roots = causes.filter((cause) => !cause.explained_by?.length);
  const others = causes.filter((cause) => cause.explained_by?.length);
  return (
    <section class={`verdict ${verdict.verdict}`} aria-live="polite" id="verdict">
      <p class="kind">{HEADLINE[verdict.verdict] ?? verdict.verdict}</p>
      {!saidBelow(verdict, roots) && <p class="reason">{headline(verdict)}</p>}
      {verdict.decides && <p class="reason">To decide: <code>{verdict.decides}</code></p>}
      {roots.map((cause, i) => (
        <CauseCard key={cause.cause} cause={cause} first={i === 0} show={show} />
      ))}
      {others.length > 0 && (
        <details class="more">
          <summary>{others.length === 1 ? "One consequence" : `${others.length} consequences`} of the above</summary>
          {others.map((cause) => (
            <CauseCard key={cause.cause} cause={cause} first={false} show={show} />
          ))}
        </details>
      )}
      <Symptoms items={verdict.symptoms ?? []} />
      <Rest verdict={verdict} />
    </section>
  );
}

/** One cause says it all by its own heading. */
function saidBelow(verdict: VerdictData, roots: Cause[]): boolean {
  const plain = (text: string) => text.toLowerCase().replace(/\.$/, "");
  return roots.length > 0 && plain(headline(verdict)) === plain(roots[0].summary ?? "");
}

function headline(verdict: VerdictData): string {
  if (verdict.error) return verdict.error;
  if (verdict.reason) return `${verdict.reason[0].toUpperCase()}${verdict.reason.slice(1).replace(/\.$/, "")}.`;
  if (verdict.verdict === "healthy") return "No test found a cause that keeps this run from learning.";
  return verdict.causes?.[0]?.summary ?? "The evidence is not enough to name a cause.";
}

function CauseCard({ cause, first, show }: { cause: Cause; first: boolean; show: Props["show"] }) {
  const facts: [string, string][] = [];
  if (cause.line) facts.push(["line", cause.line]);
  if (cause.where) facts.push(["where", cause.where]);
  if (cause.since_step !== null && cause.since_step !== undefined) facts.push(["since step", number(cause.since_step)]);
  return (
    <article class={`cause ${first ? "first" : ""}`} id={`cause-${cause.cause}`}>
      <header>
        <h2>{cause.summary ?? cause.title ?? cause.cause}</h2>
        <p class="chips">
          <code>{cause.cause}</code>
          {cause.status && <span class={`chip ${cause.status}`}>{cause.status}</span>}
          {cause.confidence !== undefined && <span class="plain">confidence {cause.confidence.toFixed(2)}</span>}
          {facts.map(([name, value]) => (
            <span class="plain" key={name}>
              {name} <b>{value}</b>
            </span>
          ))}
          {cause.consequences?.length ? <span class="plain">explains {cause.consequences.join(", ")}</span> : null}
          {cause.explained_by?.length ? <span class="plain">follows from {cause.explained_by.join(", ")}</span> : null}
        </p>
      </header>
      {cause.remedy && (
        <p class="remedy">
          <span>What to change</span> {cause.remedy.replace(/`/g, "")}
        </p>
      )}
      {cause.evidence?.length ? (
        <div class="scroll">
          <table>
            <thead>
              <tr>
                <th>Measured</th>
                <th class="n">value</th>
                <th class="n">expected</th>
                <th class="n">noise</th>
                <th class="n">step</th>
              </tr>
            </thead>
            <tbody>
              {cause.evidence.map((item, i) => (
                <tr key={i}>
                  <td>{item.measure}</td>
                  <td class="n strong" data-label="value">{number(item.value)}</td>
                  <td class="n" data-label="expected">{number(item.expected)}</td>
                  <td class="n" data-label="noise">{number(item.noise)}</td>
                  <td class="n" data-label="step">{number(item.step)}</td>
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      ) : null}
      <div class="actions">
        {show && (
          <button type="button" class="link" onClick={() => show(cause)}>
            Show it in the plot{cause.since_step !== null && cause.since_step !== undefined ? ` at step ${number(cause.since_step)}` : ""}
          </button>
        )}
        {cause.docs && (
          <details>
            <summary>About this cause {cause.code && <code>{cause.code}</code>}</summary>
            <Markdown text={cause.docs} />
          </details>
        )}
      </div>
    </article>
  );
}

function Symptoms({ items }: { items: (Symptom | string)[] }) {
  if (!items.length) return null;
  return (
    <div class="symptoms">
      <h4>Symptoms</h4>
      <ul>
        {items.map((item, i) => (
          <li key={i}>{typeof item === "string" ? item : (item.summary ?? item.symptom)}</li>
        ))}
      </ul>
    </div>
  );
}

function grouped<T>(items: T[], key: (item: T) => string): [string, T[]][] {
  const groups = new Map<string, T[]>();
  for (const item of items) groups.set(key(item), [...(groups.get(key(item)) ?? []), item]);
  return [...groups].sort((a, b) => b[1].length - a[1].length);
}

function Rest({ verdict }: { verdict: VerdictData }) {
  const advice = verdict.advice ?? [];
  return (
    <div class="rest">
      {advice.length > 0 && (
        <details open>
          <summary>
            <b>{advice.length}</b> slow
          </summary>
          <dl>
            {advice.map((one) => (
              <div key={one.cause}>
                <dt>{one.cause}: {one.summary}</dt>
                <dd>{one.remedy}</dd>
              </div>
            ))}
          </dl>
        </details>
      )}
      <Groups title="passed" items={(verdict.ruled_out ?? []).map((o) => ({ cause: o.cause, why: o.by }))} />
      <Groups title="not tested" items={(verdict.untested ?? []).map((o) => ({ cause: o.cause, why: o.sentence }))} />
      <Groups title="not applicable" items={(verdict.not_applicable ?? []).map((o) => ({ cause: o.cause, why: o.sentence }))} />
      {typeof verdict.overhead_percent === "number" && <span class="plain">Watching cost {number(Number(verdict.overhead_percent.toPrecision(2)))} % of the run</span>}
    </div>
  );
}

function Groups({ title, items }: { title: string; items: { cause: string; why: string }[] }) {
  if (!items.length) return null;
  return (
    <details>
      <summary>
        <b>{items.length}</b> {title}
      </summary>
      <dl>
        {grouped(items, (item) => item.why).map(([why, group]) => (
          <div key={why}>
            <dt>{why}</dt>
            <dd>{group.map((item) => item.cause).join(", ")}</dd>
          </div>
        ))}
      </dl>
    </details>
  );
}
