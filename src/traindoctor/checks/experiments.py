"""How an experiment is read: K steps of the run again, with one thing changed."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from traindoctor.checks.base import Evidence, evidence
from traindoctor.checks.course import FALLEN, Course
from traindoctor.record import ExamResult

# A difference counts from this many times the spread of controls whose batches came in another order. The
# same settings in another order differ by 4 to 8 standard errors over batches: that error is no noise.
NOISE_FACTOR = 5.0
# Where control and variant were both repeated in three orders: Student's t of the two groups (4 degrees of freedom)
# or of the differences order by order (2 degrees). Either comes by chance once in 200 to 270 experiments.
REPEATED_T, PAIRED_T = 5.0, 10.0
# ... and from this size: annealing alone gives up to 0.03 nats in 20 steps of healthy runs.
EFFECT_NATS = 0.05
# Losses under one nat (BCE, regression) are judged by share.
EFFECT_SHARE = 0.05
# Where no control is left to say how far the means of some batches lie apart: two of one healthy run by a quarter of it.
UNTOLD_SHARE = 0.01
# Share of a lower rate's gain that a warm-up to the full rate must bring: then the rate itself is fine.
WARMUP_SHARE = 0.8
# The same rate with clipped gradients must gain this many times what the best lower rate gains (1.6 in the sick case):
# a shorter step alone would do as well at a lower rate.
CLIPPED_SHARE = 1.3
# Gradients of the untrained model that the usual limit of 1 shortens less than this are no explosion (31 in the sick
# case; sound models begin with 0.5 to 5).
LARGE_NORM = 10.0
# A replay that misses the run's own losses by more does not speak about this run.
FIDELITY = 0.1
# ... unless it follows the first steps to this: then a run with long steps has magnified the last bit of a number.
FIDELITY_AT_FIRST = 1e-3
# Floor of the noise, for experiments whose orders of batches agree by chance.
NOISE_FLOOR = 0.002


# Share of the loss's gradient that the script leaves out on purpose, from which on its level is no measure of success: a
# VQ model's total, a value that learns from itself. 0 or rounding in losses that are what the step goes down on.
HELD_FIXED = 0.05
MOVING = "parts of the loss are held fixed (`detach`) and move with the weights, so its level says nothing about progress"


@dataclass(frozen=True)
class Experiment:
    """K steps replayed with one thing changed: losses on later batches, by averaged iterates."""

    start: int
    steps: int
    control: float
    before: float
    noise: float
    variants: Mapping[str, float]
    blown: Mapping[str, bool]
    control_blown: bool
    fidelity: float
    extra: Mapping[str, Any]
    controls: tuple[float, ...] = ()
    """The control in every order of batches in which it did not blow up."""
    repeats: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    """Variants that were repeated in the same orders, the first one included."""

    @classmethod
    def of(cls, result: ExamResult | None) -> Experiment | None:
        if result is None or not result.done:
            return None
        v = result.values
        control, permuted = v["control"], v.get("permuted", [])
        spread = [abs(p["loss"] - control["loss"]) for p in permuted if math.isfinite(p["loss"])]
        blown = control["blown"] and all(p["blown"] for p in permuted)
        return cls(
            start=v["start"],
            steps=v["steps"],
            control=control["loss"],
            before=v["before"],
            noise=max([NOISE_FLOOR, *spread]),
            variants={name: one["loss"] for name, one in v["variants"].items()},
            blown={name: one["blown"] for name, one in v["variants"].items()},
            control_blown=blown,
            fidelity=v.get("fidelity", 0.0),
            extra=v,
            controls=tuple(c["loss"] for c in (control, *permuted) if not c["blown"]),
            repeats={
                name: (one["loss"], *(p["loss"] for p in one["permuted"]))
                for name, one in v["variants"].items()
                if one.get("permuted")
            },
        )

    @property
    def faithful(self) -> bool:
        at_first = self.extra.get("fidelity_at_first", math.inf)
        return self.fidelity <= FIDELITY or at_first <= FIDELITY_AT_FIRST

    @property
    def until(self) -> int:
        """The step of the last batch that it is judged by."""
        return int(self.extra.get("until", self.start + self.steps))

    @property
    def moving(self) -> bool:
        """The number that is called the loss is not what the step goes down on."""
        return bool(self.extra.get("held_fixed", 0.0) > HELD_FIXED)

    @property
    def effect(self) -> float:
        """The least difference that matters."""
        level = self.control if math.isfinite(self.control) else self.before
        return max(min(EFFECT_NATS, EFFECT_SHARE * abs(level)), NOISE_FACTOR * self.noise)

    def has(self, *names: str) -> bool:
        return all(name in self.variants for name in names)

    def difference(self, name: str) -> float:
        """Variant minus control: negative where the change helps."""
        return self.variants[name] - self.control

    def wins(self, name: str) -> bool:
        """Does the change help, beyond noise and by a size that matters?"""
        if name not in self.variants or self.blown[name]:
            return False
        if self.control_blown:
            # Not blown up is not enough: it must have learned. No control says how far batches lie apart.
            effect = max(self.effect, UNTOLD_SHARE * abs(self.before))
            return self.variants[name] < self.before - effect
        if name in self.repeats:
            return self.surely_lower(name)
        return math.isfinite(self.control) and self.difference(name) <= -self.effect

    def surely_lower(self, name: str) -> bool:
        """Repeated in several orders: lower in each of them, and beyond the spread of groups or of pairs."""
        own, controls = np.array(self.repeats[name]), np.array(self.controls)
        if len(controls) != len(own) or not np.isfinite(own).all():
            return False
        gains = controls - own
        if gains.min() <= 0:
            return False
        count = len(gains)
        apart = math.sqrt((own.var(ddof=1) + controls.var(ddof=1)) / count)
        paired = float(gains.std(ddof=1)) / math.sqrt(count)
        gain = float(gains.mean())
        return gain >= self.least and gain >= min(REPEATED_T * apart, PAIRED_T * paired)

    @property
    def least(self) -> float:
        """The smallest difference that matters, where the spread is known otherwise."""
        level = float(np.mean(self.controls)) if self.controls else self.before
        return min(EFFECT_NATS, EFFECT_SHARE * abs(level))

    @property
    def breaks_sometimes(self) -> bool:
        """The run as it was blows up in one order of its batches and not in another."""
        return 0 < len(self.controls) < 1 + len(self.extra.get("permuted", ()))

    def below_all(self, name: str) -> bool:
        """Learned, and lower than the control in every order, by what matters: with other evidence beside it."""
        if not self.controls or self.blown.get(name, True):
            return False
        return self.variants[name] <= min(self.before, *self.controls) - self.least

    def leans(self, name: str) -> bool:
        """No worse than the control in its orders of batches, for what one run can say."""
        loss = self.variants.get(name, math.nan)
        level = float(np.mean(self.controls)) if self.controls else math.inf
        return not self.blown.get(name, True) and loss <= level

    def gain(self, name: str) -> float:
        """How much the loss fell from the snapshot on."""
        loss = self.variants[name]
        return self.before - loss if math.isfinite(loss) and not self.blown[name] else -math.inf

    @property
    def warmup_cures(self) -> bool:
        """A warm-up to the same rate does about as well as the better of the lower rates."""
        lower = [name for name in ("lr/3", "lr/10", "lr/100") if name in self.variants]
        if not self.wins("warmup") or not lower:
            return False
        own = 0.0 if self.control_blown else self.before - self.control
        possible = max(self.gain(name) for name in lower) - own
        return self.gain("warmup") - own >= WARMUP_SHARE * possible

    def clipping_cures(self, first_norm: float) -> bool:
        """The run breaks; at its own rate, with clipped gradients, it learns better than at any lower one."""
        others = [n for n in ("lr/3", "lr/10", "lr/100", "warmup") if n in self.variants]
        if not self.control_blown or not self.wins("clipped") or not first_norm >= LARGE_NORM:
            return False
        possible = max((self.gain(name) for name in others), default=-math.inf)
        better = self.gain("clipped") - max(possible, 0.0) >= self.effect
        return better and self.gain("clipped") >= CLIPPED_SHARE * possible

    def speaks_for(self, reached: Course, name: str) -> bool:
        """Of steps that go through the same batches again and again: the control ends where the run did, and has not
        learned its batches by heart; the changed one ends below that."""
        same = self.control <= reached.last + self.effect
        return same and self.wins(name) and self.variants[name] <= reached.last - self.least

    def outdone(self, reached: Course | None, names: Iterable[str]) -> bool:
        """The run itself came, later on, to where the changed one gets: it was slow for a while, nothing more.

        Only where no rung tells how far it should have come.
        """
        if reached is None or math.isfinite(reached.below_unigram):
            return False
        if reached.broke or reached.rebounded or not reached.last < FALLEN * reached.first:
            return False
        tried = [self.variants[n] for n in names if n in self.variants and not self.blown[n]]
        return bool(tried) and reached.last <= min(tried) + self.least

    def evidence(self, name: str, words: str) -> Evidence:
        return evidence(
            f"loss after {self.steps} repeated steps with {words}, against the unchanged run",
            self.variants[name],
            self.control,
            noise=self.noise,
            step=self.start,
        )
