"""Whether somebody else learns the run's data: what checks of several families ask before they accuse."""

from __future__ import annotations

from traindoctor.record import Record

# Nats under the entropy of the labels from which on a model has learned something of them.
GAIN = 0.1
# A gain is beyond the spread over batches from so many standard errors on.
ERRORS = 3.0
# f(permuted x) - permuted f(x), over the spread of scores: 7e-7 without positions, 0.08 and more with them.
ROUNDING = 1e-5


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
