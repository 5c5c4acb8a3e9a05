import math

import numpy as np

from traindoctor.checks.base import Outcome, check, evidence
from traindoctor.record import Record, Series

# Evaluations are few; a turn needs one side and the other.
EVALUATIONS = 4
# The held-out loss must have risen from its best by this share, and by this many times its own scatter.
RISE = 0.05
NOISE_FACTOR = 4.0
# ... and stand above the training loss by this share: a rise alone can be a rough patch of both.
GAP = 0.1

# Points of a course that tell a fall from noise.
POINTS = 20
# The loss per target and that of backward are one quantity if they differ by rounding only.
SAME = 1e-3
# The training loss goes on falling: by this share at least, and by so many times its noise.
FALLING = 0.01


@check(
    code="OVF001",
    slug="overfitting",
    title="The training loss falls while the held-out loss rises",
    needs=["loss.eval"],
    undecided="the run was not repeated with more data or a smaller model",
    outcome_only=True,
    over_batches=True,
    signs=("loss-too-good",),
)
def overfitting(record: Record) -> Outcome:
    """
    ## What it does
    Compares the course of the evaluation loss with that of the training loss after the evaluation loss was
    lowest, against the scatter of each.
    ## Why it matters
    The model memorises its examples; on new text it gets worse from then on.
    ## How to fix
    Stop at the lowest held-out loss; more data, a smaller model, dropout or weight decay.
    ## When it stays silent
    A held-out loss that is higher but still falls, or that rises together with the training loss.
    """
    held_out = record["loss.eval"].finite()
    train = training_loss(record)
    if train is None:
        return overfitting.not_judged("the training loss was recorded too rarely")
    if len(held_out) < EVALUATIONS:
        return overfitting.not_judged(f"needs {EVALUATIONS} evaluations, saw {len(held_out)}")
    lowest = int(np.argmin(held_out.values))
    best, last = float(held_out.values[lowest]), _end(held_out)
    noise = _scatter(held_out)
    rise = last - best
    if lowest >= len(held_out) - 2 or rise < max(RISE * abs(best), NOISE_FACTOR * noise):
        return overfitting.clear(f"the held-out loss is at {last:.4g}, its lowest was {best:.4g}")
    since = int(held_out.steps[lowest])
    then, now = _level(train.finite(), since), _end(train.finite(), share=0.1)
    if math.isnan(then) or now > then - max(
        NOISE_FACTOR * _level_noise(train.finite()), FALLING * abs(then)
    ):
        return overfitting.clear("the training loss is not falling while the held-out loss rises")
    if last < now * (1 + GAP):
        return overfitting.clear("the held-out loss is near the training loss")
    return overfitting.finding(
        evidence("held-out loss at the end", last, best, noise=noise, step=since),
        evidence("training loss meanwhile", now, then, step=since),
        grade="statistic",
        summary=f"The held-out loss rises from {best:.3f} (step {since}) to {last:.3f} while the training loss "
        f"falls from {then:.3f} to {now:.3f}",
        since_step=since,
    )


def training_loss(record: Record) -> Series | None:
    """The loss per target; where few steps were heard in full, what backward is called on, if it is the same quantity."""
    tokens, roots = record.get("loss.token"), record.get("loss.root")
    if tokens is not None and len(tokens.finite()) >= POINTS:
        return tokens
    if roots is None or len(roots.finite()) < POINTS:
        return None
    if tokens is None:
        return roots
    shared, of_tokens, of_roots = tokens.beside(roots)
    same = np.isclose(of_tokens, of_roots, rtol=SAME)
    return roots if len(shared) and bool(same.all()) else None


def _end(series: Series, share: float = 0.0) -> float:
    """The mean of the last two points, or of the last share of them."""
    return float(np.mean(series.values[-max(2, int(share * len(series))) :]))


def _level(series: Series, step: int) -> float:
    """The mean of about a tenth of the points around a step."""
    half = max(3, len(series) // 20)
    at = int(np.searchsorted(series.steps, step))
    around = series.values[max(0, at - half) : at + half]
    return float(np.mean(around)) if len(around) else math.nan


def _scatter(series: Series) -> float:
    """Of single points around their neighbours: second differences have variance 6 of theirs."""
    second = np.diff(series.values, n=2)
    return float(np.median(np.abs(second)) / math.sqrt(6) * 1.48) if len(second) else math.inf


def _level_noise(series: Series) -> float:
    width = max(6, len(series) // 10)
    return float(np.std(np.diff(series.values)) / math.sqrt(2 * width))
