"""What the checks of this family share: rates and the settings of groups."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from traindoctor.checks.experiments import MOVING, Experiment
from traindoctor.record import Record, Series
from traindoctor.record.stages import LEAST_STEPS

# The rate is at its full height from the start if the first step has this share of the later ones'.
FULL_RATE = 0.9
# Optimizers one after the other that still are stages of one plan.
STAGES = 4
# Under this share of its peak a rate has decayed; within the second it stands there, and above the earlier one by the
# third it is still rising.
DECAYED, AT_PEAK, RISEN = 0.5, 0.999, 1.05
FIRST_RATES_ALONE = (
    "the script moves its weights itself, and only the rates of its first steps are known"
)
BORDER = "a new optimizer begins among the steps that were repeated, so the batches behind them may be another task's"


def warms_up(record: Record) -> bool:
    """The rate rises at first."""
    rate = record["optim.lr"].finite()
    early = rate.values[: max(2, len(rate) // 2)]
    return len(rate) > 0 and bool(rate.first < FULL_RATE * float(early.max()))


def is_log(record: Record) -> bool:
    """Another tool's log: nothing in it can be run again, so a course of the loss is all that it can show."""
    return record.fact("imported") is not None


def first_norm(record: Record) -> float:
    """Of the gradients of the untrained model; NaN where it was not measured."""
    norms = record.get("grad.norm")
    known = norms is not None and len(norms) and int(norms.steps[0]) == 0
    return float(norms.values[0]) if norms is not None and known else math.nan


@dataclass(frozen=True)
class RateTrace:
    """The learning rate of the first group, step by step."""

    series: Series
    whole: bool = True
    """Of updates written by hand only the first ones are known."""

    @property
    def peak(self) -> float:
        return float(np.nanmax(self.series.values))

    @property
    def rising(self) -> bool:
        """The rate at the end is its highest and was lower a quarter of the run before: warm-up goes on."""
        values = self.series.values
        before = values[-max(2, len(values) // 4)]
        return bool(values[-1] >= AT_PEAK * self.peak and values[-1] > RISEN * before)

    @property
    def decayed(self) -> bool:
        return self.series.last < DECAYED * self.peak

    def highest(self, start: int, stop: int) -> float:
        """Of the steps from `start` on, before `stop`."""
        inside = (self.series.steps >= start) & (self.series.steps < stop)
        return float(np.nanmax(self.series.values[inside])) if inside.any() else 0.0

    def dead_from(self, share: float) -> int | None:
        """The step from which on the rate stays under `share` of its peak; None if it does not."""
        alive = np.flatnonzero(self.series.values > share * self.peak)
        if not len(alive) or alive[-1] == len(self.series) - 1:
            return None
        return int(self.series.steps[alive[-1] + 1])


def last_stage(record: Record) -> int:
    """The step at which the last stage begins, with an optimizer of its own: preference training after fine-tuning.

    Optimizers that are made again and again are no stages. Of a stretch that is judged by itself it is the begin.
    """
    begun = record.get("optim.objects")
    return int(begun.steps[-1]) if begun is not None and 1 <= len(begun) <= STAGES else 0


def crosses_a_border(record: Record, trial: Experiment) -> bool:
    """A new optimizer, for another task perhaps, begins among the steps that were repeated or the batches behind them."""
    begun = record.get("optim.objects")
    if begun is None or len(begun) > STAGES:  # one that is made anew again and again begins nothing
        return False
    # Those of the first steps take turns with each other.
    return any(max(trial.start, LEAST_STEPS - 1) < step <= trial.until for step in begun.steps)


def says_nothing(record: Record, trial: Experiment) -> str | None:
    """Why repeated steps tell nothing of this run's rate; None where they do."""
    if trial.moving:
        return MOVING
    if crosses_a_border(record, trial):
        return BORDER
    if not trial.faithful:
        return f"the repeated steps differ from the run's own losses by {trial.fidelity:.2g}"
    return None


def rate_trace(record: Record) -> RateTrace | None:
    """Of the last stage: a new optimizer (fine-tuning after training) begins a course of its own."""
    series = record.get("optim.lr")
    if series is None:
        return None
    finite = series.after(last_stage(record)).finite()
    if len(finite) < 2:
        return None
    by_hand = any(group.get("by_hand") for group in groups_of(record))
    return RateTrace(finite, whole=not by_hand)


def groups_of(record: Record) -> list[dict[str, Any]]:
    """All parameter groups of all optimizers, each with its optimizer's class under "class"."""
    return [
        {**group, "class": optimizer["class"], "by_hand": optimizer.get("by_hand", False)}
        for optimizer in record.fact("optimizer.groups") or []
        for group in optimizer["groups"]
    ]
