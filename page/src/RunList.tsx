import { useEffect, useRef, useState } from "preact/hooks";
import { Listing, emptyFilter, matches, sorted, type Filter, type Order } from "./Listing";
import { RunRow } from "./RunRow";
import type { Source } from "./source";
import type { Card } from "./types";

export function useRuns(source: Source) {
  const [list, setList] = useState<{ root: string; runs: Card[] } | null>(null);
  const [error, setError] = useState<string | null>(null);
  const load = () =>
    source.runs().then(
      (found) => {
        setList(found);
        setError(null);
      },
      (problem) => setError(String(problem.message)),
    );
  useEffect(() => {
    void load();
    return source.watch(null, () => void load(), () => undefined);
  }, [source]);
  return { list, error, load };
}

// Coming back from a run finds the list as it was left.
let left: { filter: Filter; order: Order; chosen: string[] } = { filter: emptyFilter, order: "newest", chosen: [] };

export function RunList({ source }: { source: Source }) {
  const { list, error, load } = useRuns(source);
  const [chosen, setChosen] = useState<string[]>(left.chosen);
  const [filter, setFilter] = useState(left.filter);
  const [order, setOrder] = useState(left.order);
  const [said, setSaid] = useState("");
  const heading = useRef<HTMLHeadingElement>(null);
  left = { filter, order, chosen };
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
  const several = list.runs.length > 1;
  const there = chosen.filter((name) => list.runs.some((card) => card.name === name));
  const flip = (name: string) => setChosen(there.includes(name) ? there.filter((n) => n !== name) : [...there, name]);
  const shown = sorted(list.runs.filter((card) => matches(card, filter)), order);
  const changed = (text: string) => {
    setSaid(text);
    // The row that was left is gone or has another place: the keyboard goes on from the top of the list.
    heading.current?.focus();
    return load();
  };
  return (
    <main class="page">
      <header class="title row">
        <h1 ref={heading} tabIndex={-1}>Runs</h1>
        {several && (
          <a class={`button ${there.length < 2 ? "off" : ""}`} aria-disabled={there.length < 2} href={there.length < 2 ? undefined : `#/compare/${there.map(encodeURIComponent).join("/")}`}>
            {there.length < 2 ? "Tick two or more to compare" : `Compare ${there.length} runs`}
          </a>
        )}
      </header>
      {several && <Listing runs={list.runs} shown={shown.length} filter={filter} order={order} setFilter={setFilter} setOrder={setOrder} />}
      <p class="said" role="status">{said}</p>
      <ul class="runs">
        {shown.map((card) => (
          <RunRow key={card.name} card={card} source={source} alone={card.name === list.root} tick={several ? () => flip(card.name) : null} ticked={there.includes(card.name)} changed={changed} />
        ))}
      </ul>
      {!shown.length && (
        <p class="empty small">
          No run matches.{" "}
          <button type="button" class="link" onClick={() => setFilter(emptyFilter)}>
            Show all {list.runs.length}
          </button>
        </p>
      )}
    </main>
  );
}
