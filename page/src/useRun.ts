// A run and its series, asked for again as the run goes on and as the window moves.
import { useEffect, useRef, useState } from "preact/hooks";
import type { Source } from "./source";
import type { Range, Run, SeriesData } from "./types";
import { useRange, type View } from "./view";

const POINTS = 1000;

export function useRun(source: Source, name: string, rank: number, view: View) {
  const [run, setRun] = useState<Run | null>(null);
  const [error, setError] = useState<string | null>(null);
  const [tick, setTick] = useState(0);
  const [online, setOnline] = useState(true);
  useEffect(() => {
    let current = true;
    let busy = false;
    let again = false;
    setRun(null);
    const load = async () => {
      if (busy) {
        again = true;
        return;
      }
      busy = true;
      try {
        const found = await source.run(name, rank);
        if (!current) return;
        view.setLast(found.steps - 1);
        setRun(found);
        setError(null);
        setTick((n) => n + 1);
      } catch (problem) {
        if (current) setError(String((problem as Error).message));
      }
      busy = false;
      if (again && current) {
        again = false;
        void load();
      }
    };
    void load();
    const stop = source.watch(name, () => void load(), setOnline);
    return () => {
      current = false;
      stop();
    };
  }, [source, name, rank, view]);
  return { run, error, tick, online };
}

/** The series of the window in view: asked again when it moves or grows, one request at a time. */
export function useSeries(source: Source, name: string, rank: number, names: string[], view: View, tick: number): SeriesData {
  const [data, setData] = useState<SeriesData>({});
  const range = useRange(view);
  const wanted = useRef<{ rank: number; range: Range | null; names: string[] }>({ rank, range, names });
  wanted.current = { rank, range, names };
  const line = useRef({ busy: false, again: false, alive: true, begun: false });
  useEffect(() => {
    line.current.alive = true;
    return () => void (line.current.alive = false);
  }, []);
  useEffect(() => {
    const load = async () => {
      if (line.current.busy) {
        line.current.again = true;
        return;
      }
      const asked = wanted.current;
      if (!asked.names.length) return;
      line.current.busy = true;
      try {
        if (!line.current.begun) {
          // A long record takes a while to read: the loss is drawn before the rest of it is asked for.
          line.current.begun = true;
          const early = asked.names.filter((series) => series.startsWith("loss."));
          const found = early.length ? await source.series(name, asked.rank, early, asked.range, POINTS) : {};
          if (line.current.alive) setData(found);
        }
        const found = await source.series(name, asked.rank, asked.names, asked.range, POINTS);
        if (line.current.alive) setData(found);
      } catch {
        // The head of the page tells it; what is drawn stays.
      }
      line.current.busy = false;
      if (line.current.again && line.current.alive) {
        line.current.again = false;
        void load();
      }
    };
    void load();
  }, [source, name, rank, names, tick, range?.[0], range?.[1]]);
  return data;
}
