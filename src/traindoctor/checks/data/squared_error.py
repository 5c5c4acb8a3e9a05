"""How much of the spread of its targets a regression has left: its squared error over their variance.

Both are measured as often as the budget allows, on short steps at a dozen of them. Where the loss is that error and
nothing else, its value at every step is known.
"""

from __future__ import annotations

import numpy as np

from traindoctor.record import Record, Series

# The variance of so many batches, and so many errors beside the loss, are needed.
POINTS = 10
# A loss that is the error times a constant: rounding of a scaler's factor, no second term.
PROPORTIONAL = 1e-3
# Steps whose mean is compared: batches of 48 rows vary by 0.1, their mean by 0.02.
STEPS = 40


def share_of_variance(record: Record, steps: int = STEPS) -> float | None:
    """Mean squared error of the last steps over the variance within batches; None where too little was measured."""
    error, variance = record.get("loss.squared"), record.get("target.variance")
    if error is None or variance is None:
        return None
    if "loss.token" in record.names:
        return None  # beside a loss over classes it is a term of its own, as between a student and its teacher
    errors, variances = error_by_step(record, error.finite()), variance.finite()
    if len(errors) < STEPS or len(variances) < POINTS:
        return None
    level = float(np.mean(variances.values))
    last = errors.values[-max(STEPS, steps) :]
    return float(np.mean(last)) / level if level > 0 else None


def error_by_step(record: Record, error: Series) -> Series:
    """The error at every step where the loss tells it, otherwise where it was measured."""
    loss = record.get("loss.root")
    if loss is None:
        return error
    loss = loss.finite()
    loss = loss.where(lambda values: values > 0)
    _, at, under = np.intersect1d(loss.steps, error.steps, return_indices=True)
    factors = error.values[under] / loss.values[at]
    if len(factors) < POINTS or np.ptp(factors) > PROPORTIONAL * np.median(factors):
        return error
    return Series(error.name, loss.steps, loss.values * np.median(factors))
