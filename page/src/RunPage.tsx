import { useCallback, useMemo, useState } from "preact/hooks";
import { Chart, type Mark } from "./Chart";
import { CHARTS, LAYERS, picturesOf, type ChartSpec, type LayerSpec, type Line } from "./charts";
import { Fold, useFolds } from "./Fold";
import { ago, number, steps } from "./format";
import { HeatMap } from "./HeatMap";
import type { Source } from "./source";
import { StepBar } from "./StepBar";
import { LossNow } from "./LossNow";
import { Exams, Facts, Notes, Samples, factsOf } from "./Tables";
import { Tests } from "./Tests";
import type { Theme } from "./theme";
import type { Cause, Run } from "./types";
import { Verdict } from "./Verdict";
import { useRun, useSeries } from "./useRun";
import { View } from "./view";

const STATE: Record<string, string> = {
  running: "running",
  silent: "silent",
  ended: "ended",
  failed: "ended with an error",
  corrupt: "unreadable",
  gone: "gone",
};

export function RunPage({ source, name, theme }: { source: Source; name: string; theme: Theme }) {
  const [rank, setRank] = useState(0);
  const view = useMemo(() => new View(), [name, rank]);
  const { run, error, tick, online } = useRun(source, name, rank, view);
  const present = useMemo(() => pictures(run), [run?.series.length, run && Object.keys(run.layers).length]);
  const folds = useFolds();
  const top = useMemo(() => onTop(run, present.ids), [run?.verdict, present]);
  const drawn = present.charts.filter((chart) => top.ids.includes(chart.id) || folds.isOpen(chart.id));
  const names = useMemo(() => seriesOf(drawn), [drawn.map((chart) => chart.id).join()]);
  const data = useSeries(source, name, rank, names, view, tick);
  const marks = useMemo(() => marksOf(run), [run?.verdict]);

  const show = useCallback(
    (cause: Cause) => {
      const [id] = picturesOf(cause, present.ids, parametersOf(run)).ids;
      if (!id) return;
      const step = cause.since_step ?? null;
      if (step !== null) {
        // Some room around the step, so that before and after can be compared.
        const room = Math.max(20, view.end * 0.1);
        view.setRange([step - room, step + room]);
      }
      view.setFocus({ chart: id, step, label: cause.cause });
      if (!top.ids.includes(id)) folds.show(id);
      // A panel that was closed is there after the next frame.
      requestAnimationFrame(() => {
        const target = document.getElementById(`chart-${id}`);
        target?.scrollIntoView({ block: "center" });
        target?.focus({ preventScroll: true });
      });
    },
    [present, view, top, folds],
  );

  if (error && !run) {
    return (
      <main class="page">
        <section class="verdict corrupt">
          <p class="kind">This record cannot be read</p>
          <p class="reason">{error}</p>
          <p class="plain">The other runs are not affected. A record that was cut off by a full disk or a crash of the machine may be beyond repair; the run itself is not harmed.</p>
        </section>
      </main>
    );
  }
  if (!run) return <main class="page"><p class="empty">Opening {name}…</p></main>;
  if (!source.live) document.title = `${run.name} · traindoctor`;
  const samples = run.facts["text.samples"];
  const facts = factsOf(run);
  const live = source.live && run.state === "running";
  const picture = (spec: ChartSpec | LayerSpec, framed: boolean) =>
    "stats" in spec ? (
      <HeatMap key={spec.id} spec={spec} run={run} rank={rank} source={source} view={view} theme={theme} tick={tick} framed={framed} />
    ) : (
      <Chart
        key={spec.id}
        {...spec}
        data={data}
        view={view}
        theme={theme}
        clipped={spec.clip ? data["clip.clipped"] : undefined}
        level={spec.ladder ? guessing(run) : undefined}
        marks={marks}
        framed={framed}
      />
    );
  const all: (ChartSpec | LayerSpec)[] = [...present.charts, ...present.layers];
  const lead = top.ids.map((id) => all.find((spec) => spec.id === id)!).map((spec) => picture({ ...spec, wide: false } as typeof spec, false));
  const rest = all.filter((spec) => !top.ids.includes(spec.id));
  const closed = rest.filter((spec) => !folds.isOpen(spec.id)).length;
  return (
    <main class="page">
      <header class="title">
        <h1>{run.name}</h1>
        <p class="chips">
          <span class={`state ${run.state}`}>{STATE[run.state] ?? run.state}</span>
          <span class="plain" data-steps={run.steps}>{steps(run.steps)}</span>
          {run.loss && <LossNow loss={run.loss} />}
          {run.created && <span class="plain">begun {ago(run.created)}</span>}
          {run.ranks > 1 && !source.live && <span class="plain">rank 0 of {run.ranks}</span>}
          {run.ranks > 1 && source.live && (
            <label class="plain">
              rank{" "}
              <select value={rank} onChange={(e) => setRank(Number(e.currentTarget.value))}>
                {Array.from({ length: run.ranks }, (_, r) => <option value={r}>{r}</option>)}
              </select>
            </label>
          )}
          {!online && <span class="chip failed">server not reached</span>}
          {error && <span class="chip failed">{error}</span>}
        </p>
      </header>
      <Verdict
        run={run}
        show={present.ids.size ? show : null}
        plots={
          lead.length > 0 && (
            <>
              {top.said && <p class="plain">{top.said}</p>}
              {lead}
            </>
          )
        }
      />
      <section aria-labelledby="tests">
        <h2 id="tests">Tests</h2>
        <Tests verdict={run.verdict ?? { verdict: "running" }} />
      </section>
      <section aria-labelledby="plots">
        <div class="heading">
          <h2 id="plots">More plots</h2>
          {rest.length > 0 && (
            <button type="button" class="quiet" onClick={() => folds.all(rest.map((spec) => spec.id), closed > 0)}>
              {closed > 0 ? "open all" : "close all"}
            </button>
          )}
        </div>
        {present.ids.size === 0 && <p class="empty small">{live ? "No numbers yet. They appear here within a second of the first step." : "This run has recorded no numbers."}</p>}
        {present.ids.size > 0 && <StepBar view={view} live={live} />}
        <div class="grid">
          {rest.map((spec) => (
            <Fold key={spec.id} id={spec.id} title={spec.title} about={spec.about} folds={folds} wide={"stats" in spec || spec.wide}>
              {() => picture(spec, true)}
            </Fold>
          ))}
        </div>
      </section>
      <section aria-labelledby="record">
        <h2 id="record">Record</h2>
        <div class="stack">
          {run.exams.length > 0 && (
            <Fold id="exams" title="Measurements on recorded steps" about={`${run.exams.length} tests with their numbers`} folds={folds}>
              {() => <Exams exams={run.exams} />}
            </Fold>
          )}
          {samples ? (
            <Fold id="samples" title="Samples of text" about="What the model wrote" folds={folds}>
              {() => <Samples samples={samples} />}
            </Fold>
          ) : null}
          {facts.settings.length + facts.long.length > 0 && (
            <Fold id="settings" title="Settings" about="Script, optimizer, schedule, model" folds={folds}>
              {() => <Facts run={run} names={facts.settings} long={facts.long} />}
            </Fold>
          )}
          {facts.environment.length > 0 && (
            <Fold id="environment" title="Environment" about="Versions and devices" folds={folds}>
              {() => <Facts run={run} names={facts.environment} />}
            </Fold>
          )}
          {facts.others.length > 0 && (
            <Fold id="facts" title="Other facts" about="What else was noted during the run" folds={folds}>
              {() => <Facts run={run} names={facts.others} />}
            </Fold>
          )}
          {run.notes.length > 0 && (
            <Fold id="notes" title="Notes of the recorder" about={`${run.notes.length}`} folds={folds}>
              {() => <Notes run={run} />}
            </Fold>
          )}
        </div>
      </section>
    </main>
  );
}

/** Pictures that have something to show. */
function pictures(run: Run | null) {
  const series = new Set(run?.series ?? []);
  const measured = CHARTS.filter((chart) => chart.lines.some((line) => series.has(line.name)));
  // In another tool's log the loss is what that tool wrote; nothing was seen of a backward pass.
  const logged = (line: Line) => (line.name === "loss.root" ? { ...line, label: "as logged" } : line);
  const named = run && "imported" in run.facts ? measured.map((chart) => ({ ...chart, lines: chart.lines.map(logged) })) : measured;
  const charts: ChartSpec[] = named.map((chart) => (chart.clip && !series.has("clip.limit") ? unclipped(chart) : chart));
  const layers = LAYERS.filter((layer) => layer.stats.some((stat) => run?.layers[stat.name]?.measured));
  return { charts, layers, ids: new Set([...charts, ...layers].map((picture) => picture.id)) };
}

/** Where nothing is clipped there is one norm, not one before and one after. */
function unclipped(chart: ChartSpec): ChartSpec {
  const lines = chart.lines.filter((line) => line.name !== "grad.norm_clipped").map((line) => (line.name === "grad.norm" ? { ...line, label: "norm" } : line));
  return { ...chart, lines, clip: false, about: "2-norm of all gradients together. No clipping was seen." };
}

function parametersOf(run: Run | null): Set<string> {
  const listed = run?.facts["model.parameters"];
  return new Set(Array.isArray(listed) ? listed.map((one) => String(one?.name)) : []);
}

/** The one or two pictures beside the verdict: those of the first cause, or how a run without one went. */
function onTop(run: Run | null, present: Set<string>): { ids: string[]; said: string } {
  const first = run?.verdict?.causes?.find((cause) => !cause.explained_by?.length);
  if (!first) return { ids: ["loss", "gradient"].filter((id) => present.has(id)), said: "" };
  const { ids, judged } = picturesOf(first, present, parametersOf(run));
  return { ids, said: judged || !ids.length ? "" : "Shown by a test on a recorded step, not by a curve. For comparison:" };
}

function seriesOf(charts: ChartSpec[]): string[] {
  const names = charts.flatMap((chart) => [...chart.lines.map((line) => line.name), ...(chart.clip ? ["clip.clipped"] : [])]);
  return [...new Set(names)];
}

function marksOf(run: Run | null): Mark[] {
  return (run?.verdict?.causes ?? [])
    .filter((cause) => typeof cause.since_step === "number" && cause.status !== "possible")
    .map((cause) => ({ step: cause.since_step as number, label: cause.cause }));
}

/** The loss of guessing: ln V, where the number of classes is known. */
function guessing(run: Run) {
  const site = run.facts["loss.site"] as { classes?: number } | undefined;
  const classes = Number(site?.classes);
  if (!(classes > 1)) return undefined;
  return { value: Math.log(classes), label: `ln ${number(classes)} = ${number(Math.log(classes))}, guessing` };
}
