import { useEffect, useState } from "preact/hooks";
import { ago, number, steps } from "./format";
import type { Source } from "./source";
import type { Card } from "./types";

export function useRuns(source: Source) {
  const [list, setList] = useState<{ root: string; runs: Card[] } | null>(null);
  const [error, setError] = useState<string | null>(null);
  useEffect(() => {
    const load = () =>
      source.runs().then(
        (found) => {
          setList(found);
          setError(null);
        },
        (problem) => setError(String(problem.message)),
      );
    void load();
    return source.watch(null, load, () => undefined);
  }, [source]);
  return { list, error };
}

export function RunList({ source }: { source: Source }) {
  const { list, error } = useRuns(source);
  const [chosen, setChosen] = useState<string[]>([]);
  if (!list) return <main class="page"><p class="empty">{error ?? "Looking for runs…"}</p></main>;
  if (!list.runs.length) {
    return (
      <main class="page">
        <section class="welcome">
          <h1>No runs in {list.root} yet</h1>
          <p>A run appears here as soon as it begins. Start one beside this page:</p>
          <pre>traindoctor run train.py</pre>
          <p>or train a model on your own text:</p>
          <pre>traindoctor train --data my.txt</pre>
        </section>
      </main>
    );
  }
  const flip = (name: string) => setChosen(chosen.includes(name) ? chosen.filter((n) => n !== name) : [...chosen, name]);
  return (
    <main class="page">
      <header class="title row">
        <h1>Runs</h1>
        {list.runs.length > 1 && (
          <a class={`button ${chosen.length < 2 ? "off" : ""}`} aria-disabled={chosen.length < 2} href={chosen.length < 2 ? undefined : `#/compare/${chosen.map(encodeURIComponent).join("/")}`}>
            {chosen.length < 2 ? "Tick two or more to compare" : `Compare ${chosen.length} runs`}
          </a>
        )}
      </header>
      <ul class="runs">
        {list.runs.map((card) => (
          <li key={card.name} class="panel">
            {list.runs.length > 1 && <input type="checkbox" disabled={card.state === "corrupt"} checked={chosen.includes(card.name)} onChange={() => flip(card.name)} aria-label={`Compare ${card.name}`} />}
            <a href={`#/run/${encodeURIComponent(card.name)}`}>
              <span class="name">{card.name}</span>
              <span class="say">{say(card)}</span>
              <span class={`pill ${card.verdict ?? card.state}`}>{card.verdict ?? (card.state === "corrupt" ? "unreadable" : card.state)}</span>
              <Spark values={card.spark ?? []} />
              <span class="facts">
                {card.steps !== undefined && <span>{steps(card.steps)}</span>}
                {card.loss !== null && card.loss !== undefined && <span>loss {number(Number(card.loss.toPrecision(4)))}</span>}
                <span>{card.state === "running" ? <i class="dot" /> : null}{ago(card.written)}</span>
              </span>
            </a>
          </li>
        ))}
      </ul>
    </main>
  );
}

function say(card: Card): string {
  if (card.error) return card.error;
  if (card.cause) return card.cause;
  if (card.verdict === "healthy") return "All tests that could be made pass.";
  if (card.state === "silent") return "Has written nothing for a while and has not said that it ended.";
  return "";
}

export function Spark({ values }: { values: number[] }) {
  if (values.length < 2) return <svg class="spark" viewBox="0 0 96 28" aria-hidden="true" />;
  const low = Math.min(...values);
  const high = Math.max(...values);
  const path = values.map((v, i) => `${i ? "L" : "M"}${((i / (values.length - 1)) * 94 + 1).toFixed(1)} ${(26 - ((v - low) / (high - low || 1)) * 24).toFixed(1)}`);
  return (
    <svg class="spark" viewBox="0 0 96 28" aria-hidden="true">
      <path d={path.join("")} />
    </svg>
  );
}
