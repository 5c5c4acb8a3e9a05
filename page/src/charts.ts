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
    id: "order",
    title: "Likeness of labels",
    about: "How alike the labels within a batch and in neighbouring batches are, against batches dealt at random. Under 4 is chance.",
    axis: "z",
    lines: [
      { name: "order.label_z", label: "within a batch" },
      { name: "order.neighbour_z", label: "neighbouring batches" },
      { name: "order.number_z", label: "numbers within a batch" },
      { name: "order.number_neighbour_z", label: "numbers of neighbouring batches" },
    ],
  },
  {
    id: "relation",
    title: "Relation of inputs and labels",
    about: "How far the labels are explained by the inputs, against labels dealt at random. Around 0 there is no relation.",
    axis: "z",
    lines: [{ name: "relation.z", label: "inputs to labels" }],
  },
  {
    id: "repeats",
    title: "New examples",
    about: "Share of a batch's examples that were never seen before.",
    unit: "share",
    lines: [{ name: "batch.new_rows", label: "new" }],
  },
  {
    id: "passes",
    title: "Passes per step",
    about: "Forward and backward passes that belong to one optimizer step.",
    axis: "passes",
    lines: [
      { name: "forward.calls", label: "forward" },
      { name: "backward.calls", label: "backward" },
    ],
  },
  {
    id: "decay",
    title: "Weight decay against the gradient",
    about: "Length of the decay term over that of the term it stands beside. Over 1 decay pulls harder.",
    log: true,
    axis: "ratio",
    lines: [{ name: "decay.ratio", label: "decay / gradient" }],
  },
  {
    id: "modes",
    title: "Modules in training mode",
    about: "Share of dropout and norm modules in training mode, in training and in evaluation passes.",
    unit: "share",
    lines: [
      { name: "mode.training", label: "training" },
      { name: "mode.eval_training", label: "evaluation" },
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
  /** ratio: grey where steps are ordinary; log, share and linear: sequential. */
  scale: "ratio" | "log" | "share" | "linear";
  keep?: "min";
}

export interface LayerSpec {
  id: string;
  title: string;
  about: string;
  stats: LayerStat[];
  profile?: boolean;
  /** What a row is, where it is no layer. */
  rows?: string;
}

export const LAYERS: LayerSpec[] = [
  {
    id: "ranks",
    title: "Ranks side by side",
    about: "A row for each rank, or for a few where there are many: then the largest of them. Hatched: not measured.",
    rows: "ranks",
    stats: [
      { name: "ranks/weights.crc", label: "weights unlike rank 0's", scale: "share" },
      { name: "ranks/loss.root", label: "loss", scale: "log" },
      { name: "ranks/grad.norm", label: "gradient norm", scale: "log" },
      { name: "ranks/time.step", label: "time of a step", scale: "log" },
      { name: "ranks/memory.rss", label: "memory of the process", scale: "log" },
    ],
  },
  {
    id: "layer-update",
    title: "Updates by layer",
    about: "Update to weight ratio of each parameter: grey is ordinary, blue hardly moves, red moves further than the weight is long. Hatched: not updated, or all its weights are 0.",
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
    about: "Root mean square of each parameter's gradient, in the order of the model. Hatched: no gradient.",
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

// Where a cause of a family is at home when its test read no curve.
const FAMILY: Record<string, string> = {
  DAT: "loss",
  LOS: "loss",
  GRD: "gradient",
  OPT: "update",
  MOD: "loss",
  NUM: "gradient",
  OVF: "loss",
  SPD: "time",
  GEN: "loss",
  DST: "ranks",
};
// A parameter that is named stands in one of these.
const BY_LAYER: Record<string, string> = { GRD: "layer-gradient", OPT: "layer-update", NUM: "layer-gradient" };
const MOST_ON_TOP = 2;

/** The picture that draws a series, if one on the page does. */
function drawing(series: string, present: Set<string>): string | null {
  const chart = CHARTS.find((c) => present.has(c.id) && c.lines.some((l) => l.name === series));
  if (chart) return chart.id;
  return LAYERS.find((l) => present.has(l.id) && l.stats.some((s) => s.name === series))?.id ?? null;
}

/** The pictures of the series that a cause was judged by; where it was a test of one step, its family's. */
export function picturesOf(cause: Cause, present: Set<string>, parameters: Set<string>): { ids: string[]; judged: boolean } {
  const read = (cause.series ?? []).map((series) => drawing(series, present)).filter((id): id is string => id !== null);
  // Nearly every check looks at the loss: what else it read tells more.
  const ids = [...new Set([...read.filter((id) => id !== "loss"), ...read])].slice(0, MOST_ON_TOP);
  // How the loss went beside what was read: the reader came for it.
  if (ids.length === 1 && present.has("loss")) ids.push("loss");
  if (ids.length) return { ids: [...new Set(ids)], judged: true };
  const family = (cause.code ?? "").slice(0, 3);
  const named = cause.where && parameters.has(cause.where) ? BY_LAYER[family] : undefined;
  const wanted = [named, FAMILY[family], "loss"].filter((id): id is string => id !== undefined && present.has(id));
  // Of several ranks the series of all of them are read, and not only the one that is shown.
  return { ids: [...new Set(wanted)].slice(0, MOST_ON_TOP), judged: wanted[0] === "ranks" };
}
