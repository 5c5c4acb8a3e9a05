// The table of pictures: which series stand together, how they are drawn, what they tell.
import type { Unit } from "./format";
import type { Cause } from "./types";

export interface Line {
  name: string;
  label: string;
  /** main: full strength; aside: dashed and pale; points: marks without a line. */
  kind?: "main" | "aside" | "points";
}

export interface ChartSpec {
  id: string;
  title: string;
  about: string;
  lines: Line[];
  log?: boolean;
  unit?: Unit;
  /** What the vertical axis counts, where its numbers do not say it. */
  axis?: string;
  wide?: boolean;
  clip?: boolean;
  ladder?: boolean;
}

export const CHARTS: ChartSpec[] = [
  {
    id: "loss",
    title: "Loss",
    about: "Dashed: the entropy ladder, what counting tokens alone would reach on the same targets. A model that stays on a rung has learned no more than that.",
    wide: true,
    ladder: true,
    axis: "nats",
    lines: [
      { name: "loss.token", label: "per token" },
      { name: "loss.read", label: "read by the script" },
      { name: "loss.root", label: "what backward got" },
      { name: "loss.eval", label: "held out", kind: "points" },
      { name: "ladder.unigram", label: "unigram", kind: "aside" },
      { name: "ladder.bigram", label: "bigram", kind: "aside" },
      { name: "ladder.fivegram", label: "5-gram", kind: "aside" },
    ],
  },
  {
    id: "gradient",
    title: "Gradient norm",
    about: "Before and after clipping. Marks at the foot: steps that clipping changed.",
    log: true,
    clip: true,
    axis: "2-norm",
    lines: [
      { name: "grad.norm", label: "before clipping" },
      { name: "grad.norm_clipped", label: "after" },
      { name: "clip.limit", label: "limit", kind: "aside" },
      { name: "grad.leftover_norm", label: "left over at arrival", kind: "points" },
    ],
  },
  {
    id: "update",
    title: "Update to weight ratio",
    about: "How far one step moves the weights, relative to their size. Around a thousandth is usual with Adam.",
    log: true,
    axis: "|update| / |weights|",
    lines: [{ name: "update.ratio", label: "ratio" }],
  },
  {
    id: "rate",
    title: "Learning rate",
    about: "Rate of the first parameter group.",
    axis: "learning rate",
    lines: [{ name: "optim.lr", label: "rate" }],
  },
  {
    id: "scale",
    title: "Loss scale and skipped steps",
    about: "GradScaler's factor; a skipped step had a non-finite gradient.",
    log: true,
    axis: "factor",
    lines: [
      { name: "scaler.scale", label: "scale" },
      { name: "scaler.skipped", label: "skipped", kind: "points" },
    ],
  },
  {
    id: "weights",
    title: "Weights and updates",
    about: "Global 2-norms.",
    log: true,
    axis: "2-norm",
    lines: [
      { name: "param.norm", label: "weights" },
      { name: "update.norm", label: "update" },
    ],
  },
  {
    id: "logits",
    title: "Largest logit",
    about: "Largest absolute value that enters the loss.",
    axis: "|logit|",
    lines: [{ name: "logits.absmax", label: "largest" }],
  },
  {
    id: "finite",
    title: "Non-finite entries",
    about: "Counts of NaN and infinite entries. Should be empty.",
    axis: "entries",
    lines: [
      { name: "grad.nonfinite", label: "in gradients" },
      { name: "param.nonfinite", label: "in weights" },
    ],
  },
  {
    id: "batch",
    title: "Targets that count",
    about: "Valid targets against all targets at the loss.",
    axis: "targets",
    lines: [
      { name: "target.valid", label: "valid" },
      { name: "target.total", label: "all" },
    ],
  },
  {
    id: "time",
    title: "Time per part",
    about: "Where a step's time goes. Self is what traindoctor itself cost.",
    unit: "seconds",
    log: true,
    lines: [
      { name: "time.step", label: "step" },
      { name: "time.data", label: "data" },
      { name: "time.forward", label: "forward" },
      { name: "time.backward", label: "backward" },
      { name: "time.optimizer", label: "optimizer" },
      { name: "self.seconds", label: "self", kind: "aside" },
    ],
  },
  {
    id: "memory",
    title: "Memory",
    about: "Of the process and of the device.",
    unit: "bytes",
    lines: [
      { name: "memory.rss", label: "process" },
      { name: "memory.cuda", label: "device" },
    ],
  },
  {
    id: "graphs",
    title: "Autograd graphs alive",
    about: "A graph that stays alive is a leak.",
    axis: "graphs",
    lines: [
      { name: "graphs.alive", label: "alive" },
      { name: "graphs.old", label: "older than 8 passes" },
    ],
  },
];

export interface LayerStat {
  name: string;
  label: string;
  /** ratio: diverging around a thousandth; log, share and linear: sequential. */
  scale: "ratio" | "log" | "share" | "linear";
  keep?: "min";
}

export interface LayerSpec {
  id: string;
  title: string;
  about: string;
  stats: LayerStat[];
  profile?: boolean;
}

export const LAYERS: LayerSpec[] = [
  {
    id: "layer-update",
    title: "Updates by layer",
    about: "Update to weight ratio of each parameter. Blue hardly moves, red is thrown about.",
    stats: [
      { name: "update.ratio", label: "update / weight", scale: "ratio" },
      { name: "update.rms", label: "update", scale: "log" },
      { name: "update.lost", label: "lost to rounding", scale: "share" },
      { name: "weight.rms", label: "weight", scale: "log" },
      { name: "weight.absmax", label: "largest weight", scale: "log" },
    ],
  },
  {
    id: "layer-gradient",
    title: "Gradient flow by layer",
    about: "Root mean square of each parameter's gradient, from the input side (top) to the output side.",
    profile: true,
    stats: [
      { name: "grad.rms", label: "rms", scale: "log" },
      { name: "grad.absmax", label: "largest", scale: "log" },
      { name: "grad.zeros", label: "share of zeros", scale: "share" },
    ],
  },
  {
    id: "layer-activation",
    title: "Activations by module",
    about: "What each module gives on. Dead units never fire; input dependence near zero is a collapsed model.",
    stats: [
      { name: "act.rms", label: "rms", scale: "log" },
      { name: "act.absmax", label: "largest", scale: "log" },
      { name: "act.zeros", label: "share of zeros", scale: "share" },
      { name: "act.dead", label: "dead units", scale: "share" },
      { name: "act.input_dependence", label: "input dependence", scale: "log", keep: "min" },
      { name: "act.nonfinite", label: "non-finite", scale: "linear" },
    ],
  },
  {
    id: "layer-adam",
    title: "Adam's statistics by layer",
    about: "First and second moments, and the share of signal in them.",
    stats: [
      { name: "adam.snr", label: "signal to noise", scale: "log" },
      { name: "adam.step_rms", label: "step", scale: "log" },
      { name: "adam.m_rms", label: "first moment", scale: "log" },
      { name: "adam.v_rms", label: "second moment", scale: "log" },
    ],
  },
  {
    id: "layer-attention",
    title: "Attention",
    about: "Entropy of the weights and spread of the scores, call by call.",
    stats: [
      { name: "attention.entropy", label: "entropy", scale: "linear", keep: "min" },
      { name: "attention.score_std", label: "spread of scores", scale: "log" },
    ],
  },
];

// A cause is shown where its own numbers are; its family decides when it names none that is drawn.
const FAMILY: Record<string, string> = {
  DAT: "loss",
  LOS: "loss",
  GRD: "gradient",
  OPT: "update",
  MOD: "layer-activation",
  NUM: "gradient",
  OVF: "loss",
  SPD: "time",
  GEN: "loss",
  DST: "loss",
};

/** The picture that shows a cause, among those that are on the page. */
export function chartOf(cause: Cause, present: Set<string>): string | null {
  for (const need of cause.needs ?? []) {
    const chart = CHARTS.find((c) => present.has(c.id) && c.lines.some((l) => l.name === need));
    if (chart) return chart.id;
    const layer = LAYERS.find((l) => present.has(l.id) && l.stats.some((s) => s.name === need));
    if (layer) return layer.id;
  }
  const home = FAMILY[(cause.code ?? "").slice(0, 3)];
  if (home && present.has(home)) return home;
  return present.has("loss") ? "loss" : (present.values().next().value ?? null);
}
