"""Whether somebody else learns the run's data, and how far a regression has come: what several checks ask.

Error and variance of a regression are measured as often as the budget allows, on short steps at a dozen of them. Where
the loss is that error and nothing else, its value at every step is known.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from traindoctor.checks.base import done_exam
from traindoctor.checks.course import two_signs
from traindoctor.record import Record, Series

# Nats under the entropy of the labels from which on a model has learned something of them.
GAIN = 0.1
# A gain is beyond the spread over batches from so many standard errors on.
ERRORS = 3.0
# f(permuted x) - permuted f(x), over what one unit in the last place of the weights does to the scores: 0.6 to 1.0
# without positions (float32 and bfloat16, 2 to 24 layers), with them 2600 and more in float32, 5 in bfloat16.
ROUNDINGS = 3.0
# Scores of another row that move by more than this of their spread are reached by attention, not by rounding.
MIXED = 1e-2
# The variance of so many batches, and so many errors beside the loss, are needed.
POINTS = 10
# A loss that is the error times a constant: rounding of a scaler's factor, no second term.
PROPORTIONAL = 1e-3
# Steps whose mean is compared: batches of 48 rows vary by 0.1, their mean by 0.02.
STEPS = 40


def reference(record: Record, exam: str = "reference_model") -> tuple[bool, float, float] | None:
    """(learns, gain over guessing, noise) of a plain model on the run's own batches."""
    result = done_exam(record, exam)
    if result is None:
        return None
    gain = result.values["guessing"] - result.values["held_out"]
    noise = result.values["noise"]
    return gain > max(GAIN, ERRORS * noise), gain, noise


def order_is_lost(record: Record) -> bool:
    """The order of the tokens cannot reach the output."""
    result = done_exam(record, "positions")
    if result is None:
        return False
    return any(is_rounding(pair) for pair in result.values["pairs"])


def is_rounding(pair: Mapping[str, Any]) -> bool:
    """Permuted tokens move the scores no more than rounding does."""
    return bool(pair["gap"] <= ROUNDINGS * pair["noise"])


def rolled_over_the_batch(record: Record) -> dict[str, Any] | None:
    """The look-up whose targets were rolled along one axis while the model's attention runs along the other.

    A roll wraps around: the last target is the first input. No text does that, so the axis is not its time.
    """
    shift, dependence = done_exam(record, "shift"), done_exam(record, "dependence")
    if shift is None or dependence is None:
        return None
    mixed = {p["input"] for p in dependence.values["pairs"] if p.get("other_rows", 0.0) > MIXED}
    rolled = (p for p in shift.values["pairs"] if p.get("wrapped") and p["input"] in mixed)
    return next(rolled, None)


def share_of_variance(record: Record, steps: int = STEPS) -> float | None:
    """Mean squared error of the last steps over the variance within batches; None where too little was measured."""
    error, variance = record.get("loss.squared"), record.get("target.variance")
    if error is None or variance is None:
        return None
    if "loss.token" in record.names or two_signs(record):
        # Beside a loss over classes, or over rewards, it is a term of its own: a teacher's answers, the value of a state.
        return None
    errors, variances = error_by_step(record, error.finite()), variance.finite()
    if len(errors) < STEPS or len(variances) < POINTS:
        return None
    level = float(np.mean(variances.values))
    # Late steps are measured more rarely: of too few of them there is no mean.
    last = errors.values[errors.steps > errors.steps[-1] - max(STEPS, steps)]
    return float(np.mean(last)) / level if level > 0 and len(last) >= POINTS else None


def error_by_step(record: Record, error: Series) -> Series:
    """The error at every step where the loss tells it, otherwise where it was measured."""
    loss = record.get("loss.root")
    if loss is None:
        return error
    loss = loss.finite()
    loss = loss.where(lambda values: values > 0)
    _, losses, errors = loss.beside(error)
    factors = errors / losses
    if len(factors) < POINTS or np.ptp(factors) > PROPORTIONAL * np.median(factors):
        return error
    return Series(error.name, loss.steps, loss.values * np.median(factors))
