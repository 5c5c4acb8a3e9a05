"""Whether somebody else learns the run's data: what checks of several families ask before they accuse."""

from __future__ import annotations

from typing import Any

from traindoctor.record import Record

# Nats under the entropy of the labels from which on a model has learned something of them.
GAIN = 0.1
# A gain is beyond the spread over batches from so many standard errors on.
ERRORS = 3.0
# f(permuted x) - permuted f(x), over the spread of scores: 7e-7 without positions, 0.08 and more with them.
ROUNDING = 1e-5
# Scores of another row that move by more than this of their spread are reached by attention, not by rounding.
MIXED = 1e-2


def reference(record: Record, exam: str = "reference_model") -> tuple[bool, float, float] | None:
    """(learns, gain over guessing, noise) of a plain model on the run's own batches."""
    result = record.exam(exam)
    if result is None or not result.done:
        return None
    gain = result.values["guessing"] - result.values["held_out"]
    noise = result.values["noise"]
    return gain > max(GAIN, ERRORS * noise), gain, noise


def order_is_lost(record: Record) -> bool:
    """The order of the tokens cannot reach the output."""
    result = record.exam("positions")
    if result is None or not result.done:
        return False
    return bool(min(pair["gap"] for pair in result.values["pairs"]) <= ROUNDING)


def rolled_over_the_batch(record: Record) -> dict[str, Any] | None:
    """The look-up whose targets were rolled along one axis while the model's attention runs along the other.

    A roll wraps around: the last target is the first input. No text does that, so the axis is not its time.
    """
    shift, dependence = record.exam("shift"), record.exam("dependence")
    if shift is None or dependence is None or not (shift.done and dependence.done):
        return None
    mixed = {p["input"] for p in dependence.values["pairs"] if p.get("other_rows", 0.0) > MIXED}
    rolled = (p for p in shift.values["pairs"] if p.get("wrapped") and p["input"] in mixed)
    return next(rolled, None)
