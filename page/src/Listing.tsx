import { number } from "./format";
import type { Card } from "./types";

export interface Filter {
  text: string;
  verdict: string;
  cause: string;
}

export const emptyFilter: Filter = { text: "", verdict: "", cause: "" };

const ORDERS = { newest: "newest first", oldest: "oldest first", name: "by name", loss: "lowest loss", steps: "most steps", verdict: "sick first" };
export type Order = keyof typeof ORDERS;

const URGENCY = ["sick", "inconclusive", "running", "healthy"];

/** What a run is called by its verdict, or by its state where it has none. */
export const label = (card: Card) => card.verdict ?? (card.state === "corrupt" ? "unreadable" : card.state);

export function matches(card: Card, filter: Filter): boolean {
  const words = filter.text.toLowerCase().split(/\s+/).filter(Boolean);
  const text = [card.name, card.cause ?? "", ...(card.causes ?? []), label(card)].join(" ").toLowerCase();
  return words.every((word) => text.includes(word)) && (!filter.verdict || label(card) === filter.verdict) && (!filter.cause || (card.causes ?? []).includes(filter.cause));
}

export function sorted(cards: Card[], order: Order): Card[] {
  // Runs come newest first, and equal ones stay so. A loss that is no number is no low one.
  const loss = (card: Card) => (typeof card.loss?.value === "number" ? card.loss.value : Infinity);
  const urgency = (card: Card) => (URGENCY.indexOf(label(card)) + URGENCY.length + 1) % (URGENCY.length + 1);
  const by: Record<Order, (a: Card, b: Card) => number> = {
    newest: (a, b) => (b.written ?? 0) - (a.written ?? 0),
    oldest: (a, b) => (a.written ?? 0) - (b.written ?? 0),
    name: (a, b) => a.name.localeCompare(b.name, "en", { numeric: true }),
    loss: (a, b) => loss(a) - loss(b) || 0,
    steps: (a, b) => (b.steps ?? 0) - (a.steps ?? 0),
    verdict: (a, b) => urgency(a) - urgency(b),
  };
  return [...cards].sort(by[order]);
}

interface Props {
  runs: Card[];
  shown: number;
  filter: Filter;
  order: Order;
  setFilter(filter: Filter): void;
  setOrder(order: Order): void;
}

/** Search, two filters and the order of the list. */
export function Listing({ runs, shown, filter, order, setFilter, setOrder }: Props) {
  const verdicts = counted(runs.map(label));
  const causes = counted(runs.flatMap((card) => card.causes ?? []));
  return (
    <search class="listing">
      <input type="search" placeholder="search names and causes" aria-label="Search runs" value={filter.text} onInput={(e) => setFilter({ ...filter, text: e.currentTarget.value })} />
      <select aria-label="Filter by verdict" value={filter.verdict} onChange={(e) => setFilter({ ...filter, verdict: e.currentTarget.value })}>
        <option value="">any verdict</option>
        {verdicts.map(([name, count]) => <option key={name} value={name}>{name} ({count})</option>)}
      </select>
      <select aria-label="Filter by cause" value={filter.cause} onChange={(e) => setFilter({ ...filter, cause: e.currentTarget.value })} disabled={!causes.length}>
        <option value="">any cause</option>
        {causes.map(([name, count]) => <option key={name} value={name}>{name} ({count})</option>)}
      </select>
      <select aria-label="Order of the runs" value={order} onChange={(e) => setOrder(e.currentTarget.value as Order)}>
        {Object.entries(ORDERS).map(([name, said]) => <option key={name} value={name}>{said}</option>)}
      </select>
      <span class="plain" role="status">{shown === runs.length ? `${number(shown)} runs` : `${number(shown)} of ${number(runs.length)} runs`}</span>
    </search>
  );
}

function counted(names: string[]): [string, number][] {
  const counts = new Map<string, number>();
  for (const name of names) counts.set(name, (counts.get(name) ?? 0) + 1);
  return [...counts].sort((a, b) => b[1] - a[1] || a[0].localeCompare(b[0]));
}
