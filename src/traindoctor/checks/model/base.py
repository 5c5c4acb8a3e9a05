"""Whether a model starts too large: what checks of several families ask before they accuse."""

import numpy as np

from traindoctor.checks.base import Evidence, done_exam, evidence
from traindoctor.checks.course import every_loss
from traindoctor.record import Record, Series

ANOTHER_START = "the run was not repeated with another initialisation"
# Healthy models at their first step (20 runs): loss 0.98-1.16 of ln C, scores 0.05-1.0, attention scores up to
# 3.6, weights 0.16-1.0 of 1/sqrt(fan in). The sick one had 4.0, 8, 60 and 8. Two must agree.
LIMITS = {
    "loss_ratio": ("first loss relative to ln(classes)", 1.0, 1.8),
    "logits_std": ("standard deviation of the logits", 0.5, 3.5),
    # Regressions: 0.1 to 3 where targets are brought to unit spread, less where they are not.
    "prediction_ratio": (
        "spread of the first predictions relative to that of the targets",
        1.0,
        10.0,
    ),
    "score_std": ("standard deviation of the attention scores", 1.0, 8.0),
    "weight_scale": ("weight RMS times sqrt(fan_in), median", 0.6, 2.5),
}
AGREEING = 2
# A trained healthy layer had 0.27 silent units on a batch; only a whole layer decides (sick: 1.00 in all four).
WHOLE = 0.98
# Scores can start wide though no weight is large: by a factor behind the head (MiniCPM in a width under the one its
# factor was made for: 0.8 of 1/sqrt(fan in) at most). Glorot's and Kaiming's rules give up to 1.4, an embedding of
# N(0, 1) that is tied to the output the root of its width.
LARGE_WEIGHT = LIMITS["weight_scale"][2]
# A trained model that is tuned further has large scores and a small loss.
WORSE_THAN_GUESSING = 1.3
# A large start that a run is rid of early does no harm: below guessing within this share of its steps, and at the
# end below this share of what guessing gives. Sick runs end at 0.8 (all matrices from N(0, 1)) and more; one of an
# untied T5, whose scores start 8 wide, was below guessing after a tenth and ended at 0.03.
EARLY, LEARNED = 0.2, 0.5
# Where only the scores start wide, and neither attention nor the matrices within, nothing is saturated on the way to
# them: such a start may take up to half of the steps, if the run goes on to learn nearly all (an untied T5 with SGD: below
# guessing after 0.37, at the end 0.1 of it; one with all matrices from N(0, 1)
# after 0.37 too, but 0.57).
HALF, LEARNED_WELL = 0.5, 0.25
# Fewer losses are no course; its end is this share of the steps.
TOLD_FROM, AT_THE_END = 20, 0.2
ONLY_SCORES = frozenset({"loss_ratio", "logits_std"})


def large_start(record: Record) -> dict[str, Evidence] | str:
    """What is far out of range at the first step, two numbers at least; or why the start is no fault."""
    result = done_exam(record, "init_scale")
    if result is None:
        return "the initialisation was not examined"
    values = result.values
    ratio = values.get("loss_ratio")
    if ratio is not None and ratio < WORSE_THAN_GUESSING:
        return f"the first loss is {ratio:.2f} times ln(classes)"
    out: dict[str, Evidence] = {}
    for name, (text, usual, limit) in LIMITS.items():
        value = values.get(name)
        if value is not None and value > limit:
            out[name] = evidence(text, value, usual, noise=limit - usual, step=0)
    if len(out) < AGREEING:
        return "loss, logits and weights start in the usual range"
    largest = values.get("largest_scale")
    if largest is not None and largest <= LARGE_WEIGHT:
        return f"no weight starts large: RMS at most {largest:.2g}/sqrt(fan_in)"
    losses, guessing = every_loss(record), values.get("ln_classes")
    step = undone(losses, guessing, EARLY, LEARNED)
    if step is None and ONLY_SCORES.issuperset(out):
        step = undone(losses, guessing, HALF, LEARNED_WELL)
    return out if step is None else f"training had undone the large initialisation by step {step}"


def undone(losses: Series | None, guessing: float | None, by: float, learned: float) -> int | None:
    """The step at which the loss came below guessing: within a share of the run that went on to learn.

    Where steps between the last loss above and the first below were not heard, it may have been the first of these.
    """
    if losses is None or guessing is None or len(losses) < TOLD_FROM:
        return None
    # Late steps are measured more rarely: what counts is the steps, not the points.
    steps = losses.steps[-1] + 1 - losses.steps[0]
    late = int((losses.steps > losses.steps[-1] - AT_THE_END * steps).sum())
    last = losses.values[-max(1, late) :]
    below = np.flatnonzero(losses.values < guessing)
    if not len(below) or float(np.median(last)) > learned * guessing:
        return None
    earliest = int(losses.steps[below[0] - 1]) + 1 if below[0] else int(losses.steps[0])
    return int(losses.steps[below[0]]) if earliest <= losses.steps[0] + by * steps else None
