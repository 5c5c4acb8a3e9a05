"""What the checks of the loss, gradient and numerics families share."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from traindoctor.checks.base import Check, Outcome, done_exam
from traindoctor.checks.course import loss_of
from traindoctor.checks.optimizer.base import groups_of, is_log
from traindoctor.record import ExamResult, Record

# Their step does not change when all gradients are multiplied by one number.
SCALE_FREE = frozenset(
    "Adam AdamW NAdam RAdam Adamax Adagrad Adadelta RMSprop Adafactor Lion AdamW8bit Adam8bit Muon".split()
)
# Activations of healthy models stay below 1e4 (1e5 in some residual streams); a product of two above this overflows.
SWOLLEN = 1e15
# Weights at the crash within this factor of those at the start: nothing had blown up before.
CALM = 10.0
# A loss that grows by this factor from one step to the next is on its way to overflow by itself.
RUNAWAY = 10.0
# Below this a loss may jump by any factor.
NEARLY_ZERO = 1e-3


def scale_free(record: Record) -> bool:
    """Every optimizer of the run ignores the scale of gradients (as long as nothing is clipped)."""
    kinds = {str(group["class"]) for group in groups_of(record)}
    return bool(kinds) and kinds <= SCALE_FREE


def not_finite_from(record: Record) -> int | None:
    """The first step whose loss or gradient is not finite."""
    steps = []
    series = loss_of(record)
    for found in (series, record.get("loss.root"), record.get("grad.norm")):
        if found is not None:
            bad = found.where(lambda values: ~np.isfinite(values))
            steps += [int(bad.steps[0])] if len(bad) else []
    return min(steps, default=None)


def not_known_finite(record: Record) -> str | None:
    """Why it is not known that loss and gradients stayed finite, where nothing that is not was seen; None: it is known.

    Neither tells for the other (a gradient overflows behind a finite loss), and a log tells neither: it has some of the
    steps, and of the loss a mean that NaN may be left out of, as the Hugging Face Trainer does.
    """
    if is_log(record):
        return "a log does not hold loss and gradients of every step"
    if any(s is None or not len(s) for s in (loss_of(record), record.get("grad.norm"))):
        return "loss and gradients were not both measured"
    return None


def calm(record: Record, crash: Mapping[str, Any]) -> bool:
    """Nothing had grown before the first non-finite value: the op itself is the cause."""
    now, start = crash.get("largest_weight"), crash.get("largest_weight_at_start")
    if now is None or not math.isfinite(now):
        return False
    if start and now > CALM * max(start, 1.0):
        return False
    if swollen(crash) is not None:
        return False
    series = record.get("loss.root")
    if series is None:
        return True
    before = series.before(int(crash["step"])).finite().tail(4)
    if len(before) < 2:
        return True
    sizes, untrained = np.abs(before.values), abs(series.finite().first)
    jumps = sizes[1:] > RUNAWAY * np.maximum(sizes[:-1], NEARLY_ZERO)
    # A loss that was nearly zero jumps as well; it has not left the range in which the run began.
    return not bool((jumps & (sizes[1:] > untrained)).any())


def swollen(crash: Mapping[str, Any]) -> float | None:
    """The size of what enters the op, where that alone explains the overflow: the values had grown before it."""
    sizes = [
        max(abs(i[end]) for end in ("min", "max"))
        for i in crash.get("inputs", ())
        if i.get("min") is not None and i.get("max") is not None
    ]
    largest = max((size for size in sizes if math.isfinite(size)), default=0.0)
    return largest if largest > SWOLLEN else None


def crash_of(record: Record) -> ExamResult | None:
    """The exam of the first non-finite value, if it found the op."""
    result = done_exam(record, "first_nonfinite")
    return result if result is not None and result.values.get("op") else None


def asked(record: Record) -> bool:
    """The exam was made after the run broke: one that was refused before says nothing."""
    result, broke = record.exam("first_nonfinite"), not_finite_from(record)
    if result is None:
        return False
    return result.done or broke is None or result.step >= broke


def broken_by(check: Check, record: Record) -> ExamResult | Outcome:
    """The exam that found where the run broke; without it, what follows of a check that asks for it."""
    if not_finite_from(record) is None:
        if (unknown := not_known_finite(record)) is not None:
            return check.not_judged(unknown)
        return check.clear("loss and gradients stayed finite")
    exam = record.exam("first_nonfinite")
    if exam is None or not asked(record):
        return check.not_judged("the run broke", wants="first_nonfinite")
    reason = exam.reason or exam.values.get("reason") or ""
    return crash_of(record) or check.not_judged(
        f"the first non-finite value could not be traced: {reason}"
    )


def located(values: Mapping[str, Any]) -> dict[str, Any]:
    """Module, line and step of what the exam found, as a finding has them."""
    step = int(values["step"])
    return {"where": values["module"] or None, "line": place(values), "since_step": step}


def place(values: Mapping[str, Any]) -> str | None:
    """`train.py:54`, the library's line beside it where the script only called a library."""
    line, library = values.get("line"), values.get("package_line")
    if line and library:
        return f"{line} ({library})"
    return line or library
