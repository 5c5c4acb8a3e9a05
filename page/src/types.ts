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
  /** A unified diff of the script, where the change is mechanical. */
  fix?: string | null;
  /** The law of correct training that is broken. */
  law?: string | null;
  /** What keeps it from being proven. */
  undecided?: string | null;
  docs?: string;
  /** What its check reads of the record, in that order. */
  series?: string[];
  /** The script's lines around the one it names. */
  source?: { number: number; text: string; meant: boolean }[];
  consequences?: string[];
  explained_by?: string[];
}

/** A test by the cause that it looks for. */
export interface Named {
  cause: string;
  title?: string;
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
  ruled_out?: (Named & { by: string })[];
  untested?: (Named & { reason: string; sentence: string; command: string | null })[];
  not_applicable?: (Named & { sentence: string })[];
  advice?: Cause[];
  steps?: number;
  overhead_percent?: number | null;
  overhead_seconds?: number | null;
  after_seconds?: number | null;
}

export interface Exam {
  exam: string;
  title?: string;
  measured?: { text: string; value: Cell; expected: Cell; noise: Cell } | null;
  step: number;
  outcome: "done" | "refused" | "not-applicable" | "failed";
  values: Record<string, unknown>;
  reason: string;
  seconds: number;
}

export type Cell = number | string | boolean | null;

export interface Loss {
  measure: string;
  step: number;
  /** "NaN", "inf" or "-inf" where it is not a number. */
  value: number | string;
  bad_since: number | null;
}

export interface Run {
  format: number;
  name: string;
  state: State;
  steps: number;
  loss?: Loss | null;
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
  loss?: Loss | null;
  spark?: (number | null)[];
  created?: number;
  written?: number;
  verdict?: string | null;
  cause?: string | null;
  causes?: string[];
  reason?: string | null;
  error?: string;
}

export interface Contents {
  files: number;
  bytes: number;
  entries: string[];
  running: boolean;
}

/** One thing of two runs side by side. */
export interface Row {
  name: string;
  a: Cell;
  b: Cell;
  differs: boolean;
  note?: string;
}

export interface Comparison {
  titles: [string, string];
  headline: string;
  remarks: string[];
  different: boolean;
  verdict: Row[];
  laws: Row[];
  curves: Row[];
  settings: Row[];
  environment: Row[];
  script: { state: "same" | "differ" | "unknown"; said: string; diff: string[] };
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
  /** Layers without any cell, and why. */
  absent?: Record<string, string>;
}

/** One row of cells per layer. NaN: nothing measured; infinite: an infinite value under it. */
export interface Heat {
  layers: string[];
  steps: number[];
  values: Float32Array[];
  absent: Record<string, string>;
}

export type Range = [number, number];

/** A report that stands alone carries this in <script id="traindoctor-data">. */
export interface Embedded {
  run: Run;
  series: SeriesData;
  layers: Record<string, CodedHeat>;
}
