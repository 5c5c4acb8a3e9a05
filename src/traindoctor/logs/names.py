"""What the column of another tool's log is: one of our series, or ignored, and why."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

# Our own boards put this before the names of a record's series.
OUR_TAG = "traindoctor/"
# A log's own names are kept; nobody reads more of one than this.
LONGEST_NAME = 200
TRAIN = ("train", "training")
EVAL = ("eval", "evaluation", "val", "valid", "validation", "test", "dev", "heldout")
# Steps, the surest name first: W&B's own `_step` counts calls of its logger.
STEPS = (
    "global_step",
    "step",
    "iteration",
    "iter",
    "it",
    "steps",
    "update",
    "num_updates",
    "batch",
)
# Base name -> how much of a loss it is: the column with the lowest number is taken.
LOSSES: Mapping[str, int] = {
    **dict.fromkeys(("loss", "lm_loss", "epoch_loss", "batch_loss", "running_loss"), 0),
    **dict.fromkeys(("avg_loss", "mean_loss", "loss_mean", "reduced_loss", "global_avg_loss"), 0),
    **dict.fromkeys(("ce", "ce_loss", "cross_entropy", "cross_entropy_loss", "nll", "nll_loss"), 1),
    **dict.fromkeys(("total_loss", "loss_total"), 1),
    **dict.fromkeys(("perplexity", "ppl"), 3),
}
PERPLEXITY = ("perplexity", "ppl")
OTHERS: Mapping[str, str] = {
    **dict.fromkeys(("lr", "learning_rate"), "optim.lr"),
    **dict.fromkeys(("grad_norm", "gradient_norm", "gnorm", "gradnorm", "grads_norm"), "grad.norm"),
    **dict.fromkeys(("total_grad_norm", "global_grad_norm", "grad_norm_total"), "grad.norm"),
    **dict.fromkeys(("grad_norm_clipped", "clipped_grad_norm"), "grad.norm_clipped"),
    "max_grad_norm": "clip.limit",
    **dict.fromkeys(("param_norm", "weight_norm", "params_norm"), "param.norm"),
    "update_norm": "update.norm",
    **dict.fromkeys(("loss_scale", "grad_scale", "amp_scale"), "scaler.scale"),
}
# Lightning's monitor writes `lr-AdamW` and `lr-AdamW/pg1`; a loop of groups `lr_0`, `lr_group_1`.
RATE_OF_GROUP = re.compile(
    r"lr_(\w*?(adam|sgd|lion|muon|adafactor|rmsprop|lamb)\w*|(pg|group_?)?\d+)"
)
SPLIT_NORM = re.compile(r"grad_\d(_\d)?_norm_total")  # Lightning: grad_2.0_norm_total
SERIES_SAID = {
    "loss.root": "training loss",
    "loss.eval": "validation loss",
    "optim.lr": "learning rate",
    "grad.norm": "gradient norm",
    "grad.norm_clipped": "gradient norm after clipping",
    "clip.limit": "clip limit",
    "param.norm": "norm of the weights",
    "update.norm": "norm of the update",
    "scaler.scale": "scale of the gradient scaler",
}
# What a record of ours holds, as `traindoctor export` writes it.
OURS = re.compile(
    r"(loss\.(root|read|token|eval|squared)|optim\.(lr|objects|state_\w+)|grad\.(norm\w*|leftover_norm|nonfinite|crc)"
    r"|clip\.(limit|calls|in_time|scaled|coverage)|(param|update)\.(norm|ratio|nonfinite)|decay\.ratio|schedule\.calls"
    r"|scaler\.(scale|skipped|unscaled)|(batch|target|ladder|order|relation|time|memory|graphs|mode|sync|random"
    r"|forward|backward|zero_grad|weights|logits|self)\.[a-z_]+)"
)
SCORES = frozenset(
    "accuracy acc top1 top5 f1 bleu rouge mcc auc precision recall reward rewards score exact_match em wer cer "
    "return matthews_correlation pearson spearmanr".split()
)
CLOCKS = frozenset(
    "epoch epochs runtime timestamp wall_time time seconds elapsed relative_time tokens num_tokens total_flos flos "
    "samples_per_second steps_per_second tokens_per_second throughput tps mfu memory step_time samples".split()
)
# Names that could be either: nothing is read into them.
EITHER: Mapping[str, str] = {
    "norm": "a norm of the gradients or of the weights",
    "clip": "a clip limit or a share of clipped steps",
    "grad_clip": "a clip limit or a share of clipped steps",
    "scale": "a gradient scaler's factor or another scale",
    "rate": "a learning rate or a throughput",
    "error": "a loss or a share of wrong answers",
    "cost": "a loss or a price",
    "objective": "a loss or a reward",
    "metric": "a loss or a score",
    "value": "anything",
}


@dataclass(frozen=True)
class Column:
    """A column of the log and what it is taken as."""

    name: str
    series: str | None
    """One of our series; None: ignored."""
    why: str = ""
    rank: int = 0
    """Of several columns of one series the lowest is taken."""
    is_perplexity: bool = False


def plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "_", name[:LONGEST_NAME].lower()).strip("_")


def is_step(name: str) -> bool:
    return step_rank(name) is not None


def step_rank(name: str) -> int | None:
    """How sure a name is one of steps; None for other names."""
    if name == f"{OUR_TAG}step":  # beside a board's own step, which may be ahead
        return -1
    words = plain(name).split("_")
    while words and words[0] in (*TRAIN, "trainer"):
        words = words[1:]
    base = "_".join(words)
    if base not in STEPS:
        return None
    return STEPS.index(base) + (len(STEPS) if name.startswith("_") else 0)


def understand(name: str) -> Column:
    """What one name says by itself."""
    own = name.removeprefix(OUR_TAG)
    if name != own and re.fullmatch(r"[a-z_]+\.[a-z_]+", own):
        return Column(name, own, rank=-1)
    if OURS.fullmatch(own):
        return Column(name, own)
    words = plain(name).split("_")
    held_out = any(word in EVAL for word in words)
    if held_out and any(word in TRAIN for word in words):
        return Column(name, None, "could be of training or of validation")
    words = [word for word in words if word not in (*TRAIN, *EVAL)]
    base, by_epoch = "_".join(words), 0
    if len(words) > 1 and words[-1] in ("step", "epoch"):
        base, by_epoch = "_".join(words[:-1]), 2 * (words[-1] == "epoch")
    base = base.removeprefix("loss_metrics_").removeprefix("metrics_").removeprefix("losses_")
    if base in LOSSES:
        series = "loss.eval" if held_out else "loss.root"
        return Column(name, series, "", LOSSES[base] + by_epoch, base in PERPLEXITY)
    if not held_out and (base in OTHERS or SPLIT_NORM.fullmatch(base)):
        return Column(name, OTHERS.get(base, "grad.norm"), rank=by_epoch)
    if not held_out and RATE_OF_GROUP.fullmatch(base):
        return Column(name, "optim.lr", rank=1)
    return Column(name, None, _why_not(base))


def _why_not(base: str) -> str:
    if base in EITHER:
        return f"could be {EITHER[base]}"
    if base in SCORES or any(word in SCORES for word in base.split("_")):
        return "a score, not a loss"
    if base in CLOCKS:
        return "time or amount, not needed"
    if base.endswith("loss") or base.startswith("loss"):
        return "could be a term of the loss or another loss"
    return "not a known name"


def choose(names: Iterable[str], points: Mapping[str, int]) -> list[Column]:
    """All columns but the steps, each series given to one of them: the surest name, then the one with most numbers."""
    columns = [understand(name) for name in names if not is_step(name)]
    taken: dict[str, Column] = {}
    for column in sorted(columns, key=lambda c: (c.rank, -points.get(c.name, 0))):
        if column.series is not None and points.get(column.name, 0):
            taken.setdefault(column.series, column)
    return [_placed(column, taken, points) for column in columns]


def _placed(column: Column, taken: Mapping[str, Column], points: Mapping[str, int]) -> Column:
    if column.series is None or taken.get(column.series) == column:
        return column
    if not points.get(column.name, 0):
        return Column(column.name, None, "holds no numbers")
    said = SERIES_SAID.get(column.series, column.series)
    return Column(column.name, None, f"the {said} is taken from {taken[column.series].name}")
