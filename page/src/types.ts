// What report/payload.py and report/json.py write. Everything may be missing in an old record.

export interface Evidence {
  measure: string;
  value: number | string | null;
  expected?: number | string | null;
  noise?: number | string | null;
  step?: number | null;
}

export interface Cause {
  cause: string;
  code?: string;
  title?: string;
  status?: string;
  confidence?: number;
  where?: string | null;
  line?: string | null;
  since_step?: number | null;
  summary?: string;
  evidence?: Evidence[];
  remedy?: string;
  docs?: string;
  needs?: string[];
  consequences?: string[];
  explained_by?: string[];
}

export interface Symptom {
  symptom?: string;
  summary?: string;
  since_step?: number | null;
}

export interface Verdict {
  verdict: "healthy" | "sick" | "inconclusive" | "running";
  reason?: string;
  decides?: string | null;
  error?: string;
  causes?: Cause[];
  symptoms?: (Symptom | string)[];
  ruled_out?: { cause: string; by: string }[];
  untested?: { cause: string; reason: string; sentence: string; command: string | null }[];
  not_applicable?: { cause: string; sentence: string }[];
  advice?: Cause[];
  steps?: number;
  overhead_percent?: number | null;
}

export interface Exam {
  exam: string;
  step: number;
  outcome: "done" | "refused" | "not-applicable" | "failed";
  values: Record<string, unknown>;
  reason: string;
  seconds: number;
}

export interface Run {
  format: number;
  name: string;
  state: State;
  steps: number;
  ranks: number;
  created: number | null;
  series: string[];
  layers: Record<string, { layers: number; measured: boolean }>;
  facts: Record<string, unknown>;
  exams: Exam[];
  notes: { time: number; level: string; text: string }[];
  verdict: Verdict | null;
}

export type State = "running" | "silent" | "ended" | "failed" | "corrupt" | "gone";

export interface Card {
  name: string;
  state: State;
  steps?: number;
  loss?: number | null;
  spark?: number[];
  created?: number;
  written?: number;
  verdict?: string | null;
  cause?: string | null;
  error?: string;
}

export interface Points {
  steps: number[];
  values: (number | null)[];
  bad?: [number, string][];
}

export type SeriesData = Record<string, Points>;

/** As it travels: cells layer by layer, base64 of little-endian float32. */
export interface CodedHeat {
  layers: string[];
  steps: number[];
  cells: string;
}

/** One row of cells per layer. NaN: nothing measured; infinite: an infinite value under it. */
export interface Heat {
  layers: string[];
  steps: number[];
  values: Float32Array[];
}

export type Range = [number, number];

/** A report that stands alone carries this in <script id="traindoctor-data">. */
export interface Embedded {
  run: Run;
  series: SeriesData;
  layers: Record<string, CodedHeat>;
}
