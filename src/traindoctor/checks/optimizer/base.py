"""What the checks of this family share: how far the loss got, and how an experiment is read."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from traindoctor.checks.base import Evidence, evidence
from traindoctor.record import ExamResult, Record, Series

# A difference counts from this many times the spread of controls whose batches came in another order. The
# same settings in another order differ by 4 to 8 standard errors over batches: that error is no noise.
NOISE_FACTOR = 5.0
# Where control and variant were both repeated in three orders: Student's t of the two groups (4 degrees of freedom)
# or of the differences order by order (2 degrees). Either comes by chance once in 200 to 270 experiments.
REPEATED_T, PAIRED_T = 5.0, 10.0
# ... and from this size: annealing alone gives up to 0.03 nats in 20 steps of healthy runs.
EFFECT_NATS = 0.05
# A loss under this share of its start has fallen; a run that is stuck at the level of frequencies has not.
FALLEN = 0.8
# Under this share of it hardly anything is left to learn. (A table learned by heart under a decay of 0.5: 0.001.)
SOLVED = 0.1
# Losses under one nat (BCE, regression) are judged by share.
EFFECT_SHARE = 0.05
# Where no control is left to say how far the means of some batches lie apart: two of one healthy run by a quarter of it.
UNTOLD_SHARE = 0.01
# The rate is at its full height from the start if the first step has this share of the later ones'.
FULL_RATE = 0.9
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
# A loss above the first one by this factor is no noise of batches: steps are too long, for a while at least.
SPIKE = 1.3
# Share of the way from the unigram to the bigram rung from which on nobody asks whether steps are too long (31 of
# 37 healthy runs came further in 100 to 300 steps; the others are asked by experiment).
MOST_CONTEXT = 0.7
# Optimizers one after the other that still are stages of one plan.
STAGES = 4
# Share of its largest size by which a loss must lie on either side of 0: 20 supervised runs never go below 0, three policy
# gradients with a baseline reach -0.23 to -1.
SIGN = 0.01
NO_MEASURE = "the loss is now above, now below 0: its level is no measure of success"
# Floor of the noise, for experiments whose orders of batches agree by chance.
NOISE_FLOOR = 0.002


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

    def speaks_for(self, reached: Progress, name: str) -> bool:
        """Of steps that go through the same batches again and again: the control ends where the run did, and has not
        learned its batches by heart; the changed one ends below that."""
        same = self.control <= reached.last + self.effect
        return same and self.wins(name) and self.variants[name] <= reached.last - self.least

    def outdone(self, reached: Progress | None, names: Iterable[str]) -> bool:
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
            f"loss after {self.steps} replayed steps with {words} (expected: the same as without)",
            self.variants[name],
            self.control,
            noise=self.noise,
            step=self.start,
        )


@dataclass(frozen=True)
class Progress:
    """How far the loss came, from windows of a tenth of the run."""

    first: float
    last: float
    lowest: float
    noise: float
    finite: bool
    below_unigram: float
    """Nats under the unigram rung at the end; NaN where no rung was measured."""
    context: float = math.nan
    """Nats between the unigram and the bigram rung: what one token of context is worth."""
    highest: float = math.nan
    """The highest single loss."""

    @property
    def broke(self) -> bool:
        return not self.finite or self.last > self.first + 5 * self.noise + EFFECT_NATS

    @property
    def spiked(self) -> bool:
        """Some step was far worse than the untrained model."""
        return self.highest > SPIKE * abs(self.first) + 0.5

    @property
    def rebounded(self) -> bool:
        return self.last > self.lowest + max(6 * self.noise, 0.1 * abs(self.lowest))

    @property
    def fell(self) -> bool:
        """By a fifth at least, and it did not come back."""
        return self.last < FALLEN * self.first and not (self.broke or self.rebounded or self.spiked)

    @property
    def solved(self) -> bool:
        """Next to nothing is left of the loss: whatever slowed the run down did not stop it."""
        return self.last < SOLVED * self.first and not (self.broke or self.rebounded)

    @property
    def learned(self) -> bool:
        """A healthy fall: clearly under what frequencies alone give, or by half where no rung is known."""
        if self.broke or self.rebounded or self.spiked:
            return False
        if math.isfinite(self.below_unigram):
            return self.below_unigram > 0.3
        return self.last < 0.6 * self.first

    @property
    def how_far(self) -> str:
        """Of a run that learned: against what."""
        if math.isfinite(self.below_unigram):
            return "the loss fell well under the level of token frequencies"
        return f"the loss fell from {self.first:.3g} to {self.last:.3g}"

    @property
    def stuck(self) -> bool:
        """It neither breaks nor learns: on the level of frequencies, or hardly under its start."""
        if self.broke or self.learned:
            return False
        return math.isfinite(self.below_unigram) or self.last > FALLEN * self.first

    @property
    def learned_well(self) -> bool:
        """Learned, and most of what one token of context gives: the length of the steps is no suspect.

        Healthy small models end on the bigram rung; steps that are too long leave a run between the two.
        """
        known = math.isfinite(self.context) and self.context > 0
        return self.learned and (not known or self.below_unigram > MOST_CONTEXT * self.context)


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


def loss_of(record: Record) -> Series | None:
    """The training loss as well as the record knows it."""
    for name in ("loss.token", "loss.root", "loss.read"):
        series = record.get(name)
        if series is not None and len(series):
            return series
    return None


def two_signs(record: Record) -> bool:
    """The loss lies above and below 0: answers are rewarded and punished (policy gradients), and it has no floor that a
    better model comes nearer to. Its level is no measure of success."""
    series = loss_of(record)
    values = series.finite().values if series is not None else np.empty(0)
    least = SIGN * float(np.abs(values).max()) if len(values) else 0.0
    return len(values) > 0 and bool(values.min() < -least and values.max() > least)


def progress(record: Record) -> Progress | None:
    """None while there are too few points to speak of."""
    series = loss_of(record)
    if series is None:
        return None
    finite = series.finite()
    if len(finite) < 3:
        return (
            None
            if len(series) < 3
            else Progress(math.nan, math.nan, math.nan, 0.0, False, math.nan)
        )
    width = max(1, min(25, len(finite) // 8))
    means = np.convolve(finite.values, np.ones(width) / width, mode="valid")
    noise = float(np.std(np.diff(finite.values)) / math.sqrt(2 * width)) if len(finite) > 3 else 0.0
    rung = record.get("ladder.unigram")
    below = context = math.nan
    if rung is not None and series.name == "loss.token" and len(rung.finite()) >= 3:
        # The rung is sampled less often than the loss, and moves slowly.
        level = float(np.mean(rung.finite().values[-3:]))
        below = level - float(means[-1])
        pairs = record.get("ladder.bigram")
        if pairs is not None and len(pairs.finite()) >= 3:
            context = level - float(np.mean(pairs.finite().values[-3:]))
    # The last tenth non-finite is a run that broke; one skipped step of a scaler is not.
    tail = series.values[-max(1, len(series) // 10) :]
    return Progress(
        first=float(finite.values[:3].min()),  # the second and third may already be on their way up
        last=float(means[-1]),
        lowest=float(means.min()),
        noise=noise,
        finite=bool(np.isfinite(tail).any()),
        below_unigram=below,
        highest=float(finite.values.max()),
        context=context,
    )


@dataclass(frozen=True)
class RateTrace:
    """The learning rate of the first group, step by step."""

    series: Series

    @property
    def peak(self) -> float:
        return float(np.nanmax(self.series.values))

    @property
    def rising(self) -> bool:
        """The rate at the end is its highest and was lower a quarter of the run before: warm-up goes on."""
        values = self.series.values
        before = values[-max(2, len(values) // 4)]
        return bool(values[-1] >= 0.999 * self.peak and values[-1] > 1.05 * before)

    @property
    def decayed(self) -> bool:
        return self.series.last < 0.5 * self.peak

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

    Optimizers that are made again and again are no stages.
    """
    begun = record.get("optim.objects")
    return int(begun.steps[-1]) if begun is not None and 1 < len(begun) <= STAGES else 0


def rate_trace(record: Record) -> RateTrace | None:
    """Of the last stage: a new optimizer (fine-tuning after training) begins a course of its own."""
    series = record.get("optim.lr")
    if series is None:
        return None
    finite = series.after(last_stage(record)).finite()
    return RateTrace(finite) if len(finite) >= 2 else None


def groups_of(record: Record) -> list[dict[str, Any]]:
    """All parameter groups of all optimizers, each with its optimizer's class under "class"."""
    return [
        {**group, "class": optimizer["class"]}
        for optimizer in record.fact("optimizer.groups") or []
        for group in optimizer["groups"]
    ]
