// Where numbers come from: the live server, or the report's own embedded data. Same interface.
import type { Card, CodedHeat, Comparison, Contents, Embedded, Heat, Range, Run, SeriesData } from "./types";

export interface Tick {
  steps: number;
  state: string;
  error?: string;
}

export interface Source {
  live: boolean;
  runs(): Promise<{ root: string; runs: Card[] }>;
  run(name: string, rank: number): Promise<Run>;
  series(name: string, rank: number, names: string[], range: Range | null, points: number): Promise<SeriesData>;
  layers(name: string, rank: number, what: string, range: Range | null, columns: number, keep: string): Promise<Heat>;
  contents(name: string): Promise<Contents>;
  rename(name: string, to: string): Promise<{ run: string }>;
  remove(name: string): Promise<unknown>;
  compare(a: string, b: string): Promise<Comparison>;
  /** Calls back on each change; `online` tells whether the line stands. Returns how to stop. */
  watch(name: string | null, onTick: (tick: Tick) => void, online: (on: boolean) => void): () => void;
}

export class Refused extends Error {}

/** `change`: a request that alters a file says by its header that this page sends it. */
async function get<T>(path: string, query: Record<string, string | number | null>, change = false): Promise<T> {
  const search = new URLSearchParams();
  for (const [key, value] of Object.entries(query)) if (value !== null) search.set(key, String(value));
  const answer = await fetch(`/api/${path}?${search}`, change ? { method: "POST", headers: { "x-traindoctor": "1" } } : {});
  const body = await answer.json();
  if (!answer.ok) throw new Refused(body.error ?? `the server answered ${answer.status}`);
  return body as T;
}

function decoded({ layers, steps, cells, absent }: CodedHeat): Heat {
  const bytes = Uint8Array.from(atob(cells), (letter) => letter.charCodeAt(0));
  const all = new Float32Array(bytes.buffer);
  return { layers, steps, absent: absent ?? {}, values: layers.map((_, i) => all.subarray(i * steps.length, (i + 1) * steps.length)) };
}

class Server implements Source {
  live = true;
  runs() {
    return get<{ root: string; runs: Card[] }>("runs", {});
  }
  run(name: string, rank: number) {
    return get<Run>("run", { run: name, rank });
  }
  series(name: string, rank: number, names: string[], range: Range | null, points: number) {
    const [from, to] = range ?? [null, null];
    return get<SeriesData>("series", { run: name, rank, names: names.join(","), from, to, points });
  }
  layers(name: string, rank: number, what: string, range: Range | null, columns: number, keep: string) {
    const [from, to] = range ?? [null, null];
    return get<CodedHeat>("layers", { run: name, rank, name: what, from, to, columns, keep }).then(decoded);
  }
  contents(name: string) {
    return get<Contents>("contents", { run: name });
  }
  rename(name: string, to: string) {
    return get<{ run: string }>("rename", { run: name, to }, true);
  }
  remove(name: string) {
    return get("delete", { run: name }, true);
  }
  compare(a: string, b: string) {
    return get<Comparison>("compare", { a, b });
  }
  watch(name: string | null, onTick: (tick: Tick) => void, online: (on: boolean) => void) {
    const events = new EventSource(name === null ? "/api/events" : `/api/events?${new URLSearchParams({ run: name })}`);
    events.onmessage = (event) => onTick(JSON.parse(event.data));
    events.onopen = () => online(true);
    events.onerror = () => online(false);
    return () => events.close();
  }
}

const none = () => Promise.reject(new Refused("a report is one run and changes nothing"));

class Report implements Source {
  live = false;
  constructor(private data: Embedded) {}
  async runs() {
    const { name, state, steps } = this.data.run;
    return { root: "report", runs: [{ name, state, steps }] };
  }
  async run() {
    return this.data.run;
  }
  async series(_name: string, _rank: number, names: string[]) {
    return Object.fromEntries(names.filter((n) => n in this.data.series).map((n) => [n, this.data.series[n]]));
  }
  async layers(_name: string, _rank: number, what: string) {
    const found = this.data.layers[what];
    return found ? decoded(found) : { layers: [], steps: [], values: [], absent: {} };
  }
  contents(): Promise<Contents> {
    return none();
  }
  rename(): Promise<{ run: string }> {
    return none();
  }
  remove() {
    return none();
  }
  compare(): Promise<Comparison> {
    return none();
  }
  watch() {
    return () => undefined;
  }
}

export function openSource(): Source {
  const block = document.getElementById("traindoctor-data");
  return block?.textContent ? new Report(JSON.parse(block.textContent)) : new Server();
}
