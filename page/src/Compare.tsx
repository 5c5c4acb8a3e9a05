import { useEffect, useMemo, useState } from "preact/hooks";
import { Chart } from "./Chart";
import type { Line } from "./charts";
import { Differences } from "./Differences";
import { capital, steps } from "./format";
import { LossNow } from "./LossNow";
import type { Source } from "./source";
import { StepBar } from "./StepBar";
import type { Theme } from "./theme";
import type { Comparison, Run, SeriesData } from "./types";
import { useRange, View } from "./view";

const PICTURES = [
  { name: "loss.token", title: "Loss per token", about: "The same measure for every run, whatever the script prints.", wide: true, log: false },
  { name: "loss.root", title: "Loss that backward got", about: "Summed over the step's backward passes.", wide: false, log: false },
  { name: "loss.eval", title: "Held-out loss", about: "Evaluation passes since the step before.", wide: false, log: false },
  { name: "grad.norm", title: "Gradient norm before clipping", about: "Global 2-norm.", wide: false, log: true },
  { name: "optim.lr", title: "Learning rate", about: "Of the first group.", wide: false, log: false },
  { name: "update.ratio", title: "Update to weight ratio", about: "How far a step moves the weights.", wide: false, log: true },
  { name: "time.step", title: "Time per step", about: "Seconds from step to step.", wide: false, log: true },
];
const POINTS = 700;

/** Two runs with all that differs, and any number of them in one chart, step against step. */
export function Compare({ source, names, theme }: { source: Source; names: string[]; theme: Theme }) {
  const view = useMemo(() => new View(), [names.join("\n")]);
  const [runs, setRuns] = useState<(Run | { name: string; error: string })[]>([]);
  const [data, setData] = useState<Record<string, SeriesData>>({});
  const [tick, setTick] = useState(0);
  const range = useRange(view);

  useEffect(() => {
    let current = true;
    let timer = 0;
    const load = async () => {
      const found = await Promise.all(names.map((name) => source.run(name, 0).catch((e: Error) => ({ name, error: e.message }))));
      if (!current) return;
      view.setLast(Math.max(1, ...found.map((run) => ("steps" in run ? run.steps - 1 : 0))));
      setRuns(found);
      setTick((n) => n + 1);
      if (found.some((run) => "state" in run && run.state === "running")) timer = window.setTimeout(load, 1000);
    };
    void load();
    return () => {
      current = false;
      clearTimeout(timer);
    };
  }, [names.join("\n")]);

  useEffect(() => {
    let current = true;
    const wanted = PICTURES.map((picture) => picture.name);
    void Promise.all(names.map((name) => source.series(name, 0, wanted, range, POINTS).catch(() => ({})))).then((found) => {
      if (current) setData(Object.fromEntries(names.map((name, i) => [name, found[i] as SeriesData])));
    });
    return () => {
      current = false;
    };
  }, [names.join("\n"), tick, range?.[0], range?.[1]]);

  const [sides, setSides] = useState<[string, string]>([names[0], names[1] ?? names[0]]);
  useEffect(() => setSides([names[0], names[1] ?? names[0]]), [names.join("\n")]);
  const ends = runs.map((run) => ("state" in run ? run.state : "error")).join();
  const { found, fault } = useComparison(source, sides, ends);
  const pictures = useMemo(
    () =>
      PICTURES.map((picture) => {
        const lines: Line[] = names.map((name, i) => ({ name: `${i}`, label: name }));
        const series: SeriesData = {};
        names.forEach((name, i) => {
          const points = data[name]?.[picture.name];
          if (points) series[`${i}`] = points;
        });
        return { ...picture, lines, series };
      }).filter((picture) => Object.keys(picture.series).length),
    [data],
  );

  return (
    <main class="page">
      <header class="title">
        <h1>{names.length} runs side by side</h1>
      </header>
      {names.length > 1 && <Headline found={found} fault={fault} />}
      <ul class="compared">
        {runs.map((run) => (
          <li class="panel" key={run.name}>
            {run.name === sides[0] && <b class="side">A</b>}
            {run.name === sides[1] && run.name !== sides[0] && <b class="side">B</b>}
            <a href={`#/run/${encodeURIComponent(run.name)}`}>{run.name}</a>
            {"error" in run ? (
              <span class="pill corrupt">unreadable</span>
            ) : (
              <>
                <span class={`pill ${run.verdict?.verdict ?? run.state}`}>{run.verdict?.verdict ?? run.state}</span>
                <span class="plain">{steps(run.steps)}</span>
                {run.loss && <LossNow loss={run.loss} />}
                <span class="plain">{run.verdict?.causes?.[0]?.cause ?? ""}</span>
              </>
            )}
          </li>
        ))}
      </ul>
      {names.length > 2 && <Sides names={names} sides={sides} setSides={setSides} />}
      {found && <Differences found={found} />}
      <h2 id="plots">Plots</h2>
      <StepBar view={view} live={runs.some((run) => "state" in run && run.state === "running")} />
      <div class="grid">
        {pictures.map((picture) => (
          <Chart key={picture.name} id={`compare-${picture.name}`} title={picture.title} about={picture.about} lines={picture.lines} data={picture.series} view={view} theme={theme} wide={picture.wide} log={picture.log} unit={picture.name === "time.step" ? "seconds" : "plain"} keepAll />
        ))}
      </div>
      {!pictures.length && <p class="empty">These runs have no measure in common yet.</p>}
    </main>
  );
}

/** What `traindoctor compare` says of two runs. It judges both, so it is asked once, and again when one of them has ended. */
function useComparison(source: Source, [a, b]: [string, string], ends: string) {
  const [found, setFound] = useState<Comparison | null>(null);
  const [fault, setFault] = useState("");
  useEffect(() => {
    let current = true;
    if (a === b) return;
    setFault("");
    source.compare(a, b).then(
      (answer) => current && setFound(answer),
      (problem: Error) => {
        if (!current) return;
        setFound(null);
        setFault(problem.message);
      },
    );
    return () => {
      current = false;
    };
  }, [a, b, ends]);
  return { found, fault };
}

function Headline({ found, fault }: { found: Comparison | null; fault: string }) {
  const text = found ? found.headline : fault ? fault : "Comparing…";
  return (
    <section class="verdict compared-as" aria-live="polite">
      <p class="told">{capital(text)}</p>
      {found?.remarks.map((remark) => (
        <p class="plain" key={remark}>
          {remark}
        </p>
      ))}
    </section>
  );
}

function Sides({ names, sides, setSides }: { names: string[]; sides: [string, string]; setSides(sides: [string, string]): void }) {
  return (
    <p class="choose">
      {sides.map((side, i) => (
        <label key={i}>
          {"AB"[i]}{" "}
          <select aria-label={`Run ${"AB"[i]}`} value={side} onChange={(e) => setSides(i ? [sides[0], e.currentTarget.value] : [e.currentTarget.value, sides[1]])}>
            {names.map((name) => (
              <option key={name} value={name} disabled={name === sides[1 - i]}>
                {name}
              </option>
            ))}
          </select>
        </label>
      ))}
    </p>
  );
}
