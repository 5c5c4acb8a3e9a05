import type { ComponentChildren } from "preact";
import { capital, expected, measured, number, seconds } from "./format";
import { inline, Markdown } from "./Markdown";
import { changed } from "./patch";
import { SourceLines } from "./Source";
import type { Cause, Evidence, Run, Verdict as VerdictData } from "./types";

interface Props {
  run: Run;
  /** Goes to the plot of a cause, at its step; null when no plot shows it. */
  show: ((cause: Cause) => void) | null;
  /** The pictures that belong to the first cause, or to the run where there is none. */
  plots: ComponentChildren;
}

const HEADLINE = { healthy: "Healthy", sick: "Sick", inconclusive: "Inconclusive", running: "Running" };

const WAITING: Record<string, string> = { running: "Waiting for the first step.", silent: "It has no steps, and has written nothing for a while." };

export function Verdict({ run, show, plots }: Props) {
  const verdict = run.verdict;
  if (!verdict) {
    return (
      <section class="verdict waiting" aria-live="polite" id="verdict">
        <p class="kind">No verdict yet</p>
        <p class="reason">{run.steps ? "The record is being examined." : WAITING[run.state] ?? "It has no steps."}</p>
        {run.steps > 0 && plots && <div class="plots row">{plots}</div>}
      </section>
    );
  }
  const causes = verdict.causes ?? [];
  const roots = causes.filter((cause) => !cause.explained_by?.length);
  const others = causes.filter((cause) => cause.explained_by?.length);
  return (
    <section class={`verdict ${verdict.verdict}`} aria-live="polite" id="verdict">
      <p class="kind">{HEADLINE[verdict.verdict] ?? verdict.verdict}</p>
      {!saidBelow(verdict, roots) && <p class="reason">{inline(headline(verdict))}</p>}
      {verdict.decides && <p class="reason">To decide: <code>{verdict.decides}</code></p>}
      {roots.map((cause, i) => (
        <CauseCard key={cause.cause} cause={cause} first={i === 0} show={show} plots={i === 0 ? plots : null} />
      ))}
      {!roots.length && plots && <div class="plots row">{plots}</div>}
      {others.length > 0 && (
        <details class="more">
          <summary>{others.length === 1 ? "One consequence" : `${others.length} consequences`} of the above</summary>
          {others.map((cause) => (
            <CauseCard key={cause.cause} cause={cause} first={false} show={show} plots={null} />
          ))}
        </details>
      )}
      <Symptoms items={symptoms(verdict)} />
      <Rest verdict={verdict} />
    </section>
  );
}

const plain = (text: string) => text.toLowerCase().replace(/\.$/, "");

/** What shows on the curves and is not said above already. */
function symptoms(verdict: VerdictData): string[] {
  const said = (verdict.causes ?? []).map((cause) => plain(cause.summary ?? ""));
  const all = (verdict.symptoms ?? []).map((item) => (typeof item === "string" ? item : (item.summary ?? item.symptom ?? "")));
  return all.filter((text) => !said.includes(plain(text)) && !plain(headline(verdict)).startsWith(plain(text)));
}

/** One cause says it all by its own heading. */
function saidBelow(verdict: VerdictData, roots: Cause[]): boolean {
  return roots.length > 0 && plain(headline(verdict)) === plain(roots[0].summary ?? "");
}

function headline(verdict: VerdictData): string {
  if (verdict.error) return verdict.error;
  if (verdict.reason) return `${capital(verdict.reason.replace(/\.$/, ""))}.`;
  if (verdict.verdict === "healthy") return "No test found a cause that keeps this run from learning.";
  return verdict.causes?.[0]?.summary ?? "The evidence is not enough to name a cause.";
}

interface CardProps {
  cause: Cause;
  first: boolean;
  show: Props["show"];
  plots: ComponentChildren;
}

function CauseCard({ cause, first, show, plots }: CardProps) {
  const facts: [string, string][] = [];
  if (cause.line && !cause.source?.length) facts.push(["line", cause.line]);
  if (cause.where) facts.push(["where", cause.where]);
  if (cause.since_step !== null && cause.since_step !== undefined) facts.push(["since step", number(cause.since_step)]);
  return (
    <article class={`cause ${first ? "first" : ""}`} id={`cause-${cause.cause}`}>
      <header>
        <h2>{inline(cause.summary ?? cause.title ?? cause.cause)}</h2>
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
      <div class={plots ? "beside" : ""}>
        <div class="told">
          <SourceLines cause={cause} />
          {cause.remedy && (
            <p class="remedy">
              <span>What to change</span> {inline(cause.remedy)}
            </p>
          )}
          {cause.fix && <Change diff={cause.fix} />}
          {cause.law && (
            <p class="aside">
              Violates: <i>{inline(cause.law)}</i>
            </p>
          )}
          {cause.undecided && <p class="aside">Not proven: {inline(cause.undecided)}</p>}
          {cause.evidence?.length ? <EvidenceTable items={cause.evidence} /> : null}
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
        </div>
        {plots && <div class="plots">{plots}</div>}
      </div>
    </article>
  );
}

/** The lines that change, below their number: the verdict has them as a patch. */
function Change({ diff }: { diff: string }) {
  return (
    <pre class="diff" tabIndex={0} role="region" aria-label="The change as a diff">
      {changed(diff).map(({ text, kind }, i) => (
        <span key={i} class={kind}>
          {text}
          {"\n"}
        </span>
      ))}
    </pre>
  );
}

function EvidenceTable({ items }: { items: Evidence[] }) {
  return (
    <div class="scroll">
      <table>
        <thead>
          <tr>
            <th>Measured</th>
            <th class="n">value</th>
            <th class="n">expected</th>
            <th class="n">step</th>
          </tr>
        </thead>
        <tbody>
          {items.map((item, i) => (
            <tr key={i}>
              <td>{inline(item.measure.replace(/, z$/, " (z-score)"))}</td>
              <td class="n strong" data-label="value">{measured(item.value)}</td>
              <td class="n" data-label="expected">{expected(item.expected, item.noise, item.value)}</td>
              <td class="n" data-label="step">{number(item.step)}</td>
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

function Symptoms({ items }: { items: string[] }) {
  if (!items.length) return null;
  return (
    <div class="symptoms">
      <h4>Symptoms</h4>
      <ul>
        {items.map((item, i) => (
          <li key={i}>{inline(item)}</li>
        ))}
      </ul>
    </div>
  );
}

/** "Watching cost 1.3 s while the script ran (1.2 %), and 0.6 s of tests after it" */
function spent(percent: number, verdict: VerdictData): string {
  const share = `${number(Number(percent.toPrecision(2)))} %`;
  const { overhead_seconds: during, after_seconds: after } = verdict;
  const said = typeof during === "number" ? `${seconds(Number(during.toPrecision(2)))} while the script ran (${share})` : `${share} of the run`;
  return `Watching cost ${said}${after ? `, and ${seconds(Number(after.toPrecision(2)))} of tests after it` : ""}`;
}

/** What only costs time, and what watching cost. */
function Rest({ verdict }: { verdict: VerdictData }) {
  const advice = verdict.advice ?? [];
  const cost = verdict.overhead_percent;
  if (!advice.length && typeof cost !== "number") return null;
  return (
    <div class="rest">
      {advice.length > 0 && (
        <dl>
          {advice.map((one) => (
            <div key={one.cause}>
              <dt>Slow: {inline(one.summary ?? one.cause)}</dt>
              <dd>{inline(one.remedy ?? "")}</dd>
            </div>
          ))}
        </dl>
      )}
      {typeof cost === "number" && <span class="plain">{spent(cost, verdict)}</span>}
    </div>
  );
}
