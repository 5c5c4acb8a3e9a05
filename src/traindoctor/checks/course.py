"""How the loss of a run went: the one place that says learned, broke, stuck, or below the level of frequencies."""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from traindoctor.record import Record, Series

# Windows of the loss: an eighth of the run, at most so many steps. Late steps are measured more rarely: where a window
# has fewer points than this, it reaches further back.
WINDOWS, WIDEST, FEWEST = 8, 25, 3
# Two series are one quantity where their ratio is the same to this share at every step that has both.
SAME = 1e-4
# The mean of a window above the first loss by this many times its noise, and this many nats: the run broke.
BROKE_NOISE, BROKE_NATS = 5.0, 0.05
# Back above the lowest window by this many times the noise, and this share of it: it rebounded.
REBOUND_NOISE, REBOUND = 6.0, 0.1
# Points at the end whose median stands for it.
LATE = 10
# Clearly under the level of frequencies, in nats; where no level is known, under this share of the first loss.
UNDER_UNIGRAM, HALVED = 0.3, 0.6
# A loss under this share of its start has fallen; a run that is stuck at the level of frequencies has not.
FALLEN = 0.8
# Under this share of it hardly anything is left to learn. (A table learned by heart under a decay of 0.5: 0.001.)
SOLVED = 0.1
# A loss above the first one by this factor is no noise of batches: steps are too long, for a while at least.
SPIKE, SPIKE_NATS = 1.3, 0.5
# Share of the way from the unigram to the bigram rung from which on nobody asks whether steps are too long (31 of
# 37 healthy runs came further in 100 to 300 steps; the others are asked by experiment).
MOST_CONTEXT = 0.7
# Share of its largest size by which a loss must lie on either side of 0: 20 supervised runs never go below 0, three policy
# gradients with a baseline reach -0.23 to -1.
SIGN = 0.01
NO_MEASURE = "the loss goes above and below 0, so its level says nothing about progress"


@dataclass(frozen=True)
class Course:
    """How far the loss came, from the means of windows."""

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
        return not self.finite or self.last > self.first + BROKE_NOISE * self.noise + BROKE_NATS

    @property
    def spiked(self) -> bool:
        """Some step was far worse than the untrained model."""
        return self.highest > SPIKE * abs(self.first) + SPIKE_NATS

    @property
    def rebounded(self) -> bool:
        return self.last > self.lowest + max(REBOUND_NOISE * self.noise, REBOUND * abs(self.lowest))

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
            return self.below_unigram > UNDER_UNIGRAM
        return self.last < HALVED * self.first

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


def loss_of(record: Record) -> Series | None:
    """The training loss as well as the record knows it."""
    for name in ("loss.token", "loss.root", "loss.read"):
        series = record.get(name)
        if series is not None and len(series):
            return series
    return None


def every_loss(record: Record) -> Series | None:
    """The same with the steps at which only the loss of backward was measured, where that is the same quantity."""
    loss, root = loss_of(record), record.get("loss.root")
    if loss is None or root is None or loss.name == root.name:
        return loss
    ratio = constant_ratio(loss, root)
    if ratio is None:
        return loss
    return loss.with_more_of(Series(loss.name, root.steps, ratio * root.values))


def constant_ratio(a: Series, b: Series) -> float | None:
    """Of two series that are one quantity but for a factor; None where they are two."""
    _, over, under = a.beside(b)
    with np.errstate(all="ignore"):
        ratios = over / under
    ratio = float(np.median(ratios)) if len(ratios) else math.nan
    one = math.isfinite(ratio) and np.abs(ratios - ratio).max() <= SAME * abs(ratio)
    return ratio if one else None


def window_means(series: Series) -> tuple[NDArray[np.float64], int]:
    """The mean of the window that ends at each step, and the number of points in the last one."""
    steps, many = series.steps, len(series)
    span = max(1, min(WIDEST, int(steps[-1] + 1 - steps[0]) // WINDOWS))
    ends = np.arange(many)
    begins = np.searchsorted(steps, steps - span, side="right")
    begins = np.maximum(0, np.minimum(begins, ends + 1 - min(FEWEST, max(1, many // WINDOWS))))
    sums = np.concatenate([[0.0], np.cumsum(series.values)])
    means = (sums[ends + 1] - sums[begins]) / (ends + 1 - begins)
    whole = steps >= steps[0] + span - 1
    return means[whole], int(many - begins[-1])


def above_level(record: Record, level: str) -> Series | None:
    """The loss minus what a count model of the targets reaches, at the steps at which both were measured."""
    own, counted = record.get("loss.token"), record.get(level)
    if own is None or counted is None:
        return None
    steps, reached, levels = own.beside(counted)
    return Series(f"loss.token-{level}", steps, reached - levels)


def late_levels(record: Record) -> tuple[float, float] | None:
    """The last losses per target and the level of the targets' frequencies there: medians of ten points."""
    loss, level = record.get("loss.token"), record.get("ladder.unigram")
    if loss is None or level is None or len(loss) < LATE or not len(level):
        return None
    return loss.tail(LATE).median(), level.tail(LATE).median()


def two_signs(record: Record) -> bool:
    """The loss lies above and below 0: answers are rewarded and punished (policy gradients), and it has no floor that a
    better model comes nearer to. Its level is no measure of success."""
    series = loss_of(record)
    values = series.finite().values if series is not None else np.empty(0)
    least = SIGN * float(np.abs(values).max()) if len(values) else 0.0
    return len(values) > 0 and bool(values.min() < -least and values.max() > least)


def course_of(record: Record) -> Course | None:
    """None while there are too few points to speak of."""
    series = every_loss(record)
    if series is None:
        return None
    finite = series.finite()
    if len(finite) < FEWEST:
        return (
            None
            if len(series) < FEWEST
            else Course(math.nan, math.nan, math.nan, 0.0, False, math.nan)
        )
    means, width = window_means(finite)
    noise = (
        float(np.std(np.diff(finite.values)) / math.sqrt(2 * width))
        if len(finite) > FEWEST
        else 0.0
    )
    rung = record.get("ladder.unigram")
    below = context = math.nan
    if rung is not None and series.name == "loss.token" and len(rung.finite()) >= FEWEST:
        # The rung is sampled less often than the loss, and moves slowly.
        level = float(np.mean(rung.finite().values[-FEWEST:]))
        below = level - float(means[-1])
        pairs = record.get("ladder.bigram")
        if pairs is not None and len(pairs.finite()) >= FEWEST:
            context = level - float(np.mean(pairs.finite().values[-FEWEST:]))
    # The last tenth non-finite is a run that broke; one skipped step of a scaler is not.
    tail = series.values[-max(1, len(series) // 10) :]
    return Course(
        first=float(finite.values[:3].min()),  # the second and third may already be on their way up
        last=float(means[-1]),
        lowest=float(means.min()),
        noise=noise,
        finite=bool(np.isfinite(tail).any()),
        below_unigram=below,
        highest=float(finite.values.max()),
        context=context,
    )
