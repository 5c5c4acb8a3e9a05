"""What the curves of a log show, in sentences. A curve is a symptom: it proves no cause and rules none out."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from traindoctor.record.schema import Record, Series

# Ranges are over the loss of every step of 25 sound runs (corpus and public programs, 34 to 520 steps) and 7 sick ones,
# none of which jumps or swings: there only the sound side is measured. Signs are symptoms: a wrong one costs a sentence
# and no verdict.
# Fewer points make no course.
POINTS = 20
# More points than this are taken together by their medians: jumps of fewer points than that are lost in them.
MOST = 5000
# Levels are medians of a tenth of the points.
WINDOW = 10
# A level differs from another one by so many standard errors of a median (by chance: 6e-5), and by so much of itself.
ERRORS, SAME = 4.0, 0.01
# Back above its lowest level by this share, the loss has turned. Sound: 0 to 0.07 (1.4 in policy gradients, which is
# within their noise); gradients that are never cleared: 0.21, the one sick run of this kind.
TURNED = 0.1
# A point this far above the lowest level so far, in scatters of single points and as a share, is a jump. Sound: up to
# 6.4 scatters (of a loss near 0); the share is up to 0.25, and 0.6 and more where the loss is small beside its scatter.
JUMP, JUMP_SHARE = 10.0, 0.25
# Turns, up or down, by this share of the loss and JUMP scatters: so many are an oscillation. Sound: 0 or 1.
SWINGS, SWING = 6, 0.1
# A loss that stays within its noise for this share of the points is on a plateau; sound short runs end on one as well.
PLATEAU = 0.5
# Within this many nats of a known level (a blind guess, the frequencies of the tokens), the loss stands on it: the same
# as GUESS in diagnosis/symptoms.py, not measured on logs.
ON_LEVEL = 0.1
# A loss of exactly 0 at so many points at the end was not learned: the lowest of the sound runs ends at 4e-4.
ZEROS = 3
# A rate is said to rise at first where its first value is under this share of its highest.
WARM_UP = 0.9


@dataclass(frozen=True)
class Sign:
    name: str
    sentence: str
    since_step: int | None = None
    grave: bool = False
    """No sound run looks like that."""


def signs(record: Record) -> list[Sign]:
    """Everything the curves show: the grave first, then in the order of loss, gradient and rate."""
    found = [*_loss(record), *_norm(record), *_rate(record)]
    return sorted(found, key=lambda sign: not sign.grave)


def loss_of(record: Record) -> Series | None:
    series = (record.get(name) for name in ("loss.root", "loss.token", "loss.read"))
    return next((one for one in series if one is not None and len(one)), None)


def _loss(record: Record) -> list[Sign]:
    loss, held_out = loss_of(record), record.get("loss.eval")
    if loss is not None:
        zeros = _zeros(record, loss)
        return [zeros] if zeros is not None else _curve(record, loss, "the loss")
    missing = Sign("no-loss", "the log has no training loss")
    return [missing, *([] if held_out is None else _curve(record, held_out, "the validation loss"))]


def _curve(record: Record, series: Series, what: str) -> list[Sign]:
    broken = _not_finite(series, what)
    if broken is not None and broken.grave:
        return [broken]
    course = _course(record, series.finite(), what)
    return course if broken is None else [broken, *course]


def _not_finite(loss: Series, what: str) -> Sign | None:
    bad = ~np.isfinite(loss.values)
    if not bad.any():
        return None
    if bad[-1]:
        ends = np.flatnonzero(~bad)
        since = int(loss.steps[ends[-1] + 1 if len(ends) else 0])
        text = f"{what} is NaN or infinite from step {since} to the end (step {loss.steps[-1]})"
        return Sign("loss-not-finite", text, since, True)
    first, last = (int(loss.steps[k]) for k in (np.flatnonzero(bad)[0], np.flatnonzero(bad)[-1]))
    text = (
        f"{what} is NaN or infinite at {bad.sum()} of {len(loss)} points (steps {first} to {last}) and finite "
        "afterwards"
    )
    return Sign("loss-not-finite-once", text, first)


def _zeros(record: Record, loss: Series) -> Sign | None:
    """A Trainer of Hugging Face leaves a NaN out of the mean that it logs: what is left is 0."""
    learned = np.flatnonzero(loss.values != 0)
    begin = learned[-1] + 1 if len(learned) else 0
    count = len(loss) - begin
    if not count:
        return None
    since = int(loss.steps[begin])
    norm = record.get("grad.norm")
    if norm is not None and len(late := norm.after(since)) and not np.isfinite(late.values).any():
        # Of the window in which it broke the Trainer logs a mean of what was still finite: norms tell it better.
        sound = norm.finite().steps
        broke = int(
            norm.steps[np.searchsorted(norm.steps, sound[-1], "right") if len(sound) else 0]
        )
        after = f"after step {sound[-1]} and " if len(sound) else ""
        text = (
            f"the loss is logged as 0 and the gradient norm is NaN from step {since} to the end: so the Hugging Face Trainer "
            f"logs a loss that is NaN; the run broke {after}no later than step {broke}"
        )
        return Sign("loss-not-finite", text, broke, True)
    if count < ZEROS:
        return None
    text = (
        f"the loss is exactly 0 from step {since} to the end: that is not learned; a logger that leaves NaN out writes "
        "it, and so does a loss without any target"
    )
    return Sign("loss-zero", text, since, True)


@dataclass(frozen=True)
class Shape:
    """A curve with its noise: medians over a tenth of the points, and the scatter of single points."""

    what: str
    series: Series
    width: int
    levels: NDArray[np.float64]
    scatter: float

    @classmethod
    def of(cls, series: Series, what: str) -> Shape:
        series = _thinned(series)
        width = max(3, len(series) // WINDOW)
        levels = np.median(sliding_window_view(series.values, width), axis=1)
        # Second differences of independent points have six times their variance, whatever the trend is.
        scatter = 1.48 * float(np.median(np.abs(np.diff(series.values, n=2)))) / math.sqrt(6)
        return cls(what, series, width, levels, scatter)

    @property
    def first(self) -> float:
        """The first point where it stands out of the noise around it: many runs fall most within a few steps."""
        start, level = float(self.series.values[0]), float(self.levels[0])
        return start if abs(start - level) > self.differ(level, 1) else level

    @property
    def last(self) -> float:
        return float(self.levels[-1])

    def differ(self, level: float, width: int | None = None) -> float:
        """What two levels near this one must differ by; `width`: the points of one of them."""
        error = 1.25 * self.scatter * math.sqrt(1 / self.width + 1 / (width or self.width))
        return max(ERRORS * error, SAME * abs(level))

    def step(self, index: int) -> int:
        """The step in the middle of a level."""
        return int(self.series.steps[min(index + self.width // 2, len(self.series) - 1)])


def _thinned(series: Series) -> Series:
    """Medians of neighbours where there are more points than a course needs."""
    each = -(-len(series) // MOST)
    if each <= 1:
        return series
    whole = len(series) // each * each
    values = np.median(series.values[:whole].reshape(-1, each), axis=1)
    return Series(series.name, series.steps[:whole:each], values)


def _course(record: Record, loss: Series, what: str) -> list[Sign]:
    if len(loss) < POINTS:
        text = f"{len(loss)} points of {what} are too few to tell its course: {POINTS} are needed"
        return [Sign("loss-too-short", text)]
    shape = Shape.of(loss, what)
    whole = _swings(shape) or _turned(record, shape)  # a curve that swings may end on a top
    return [whole] if whole is not None else [*_jumps(shape), _calm(record, shape)]


def _turned(record: Record, shape: Shape) -> Sign | None:
    """The loss ends above where it was."""
    at = int(np.argmin(shape.levels))
    lowest, first, last = float(shape.levels[at]), shape.first, shape.last
    if last <= lowest + max(shape.differ(lowest), TURNED * abs(lowest)):
        return None
    if first - lowest <= shape.differ(first):
        text = f"{shape.what} rises: {first:.4g} at first, {last:.4g} at the end"
        return Sign("loss-rising", text, int(shape.series.steps[0]), True)
    text = f"{shape.what} falls from {first:.4g} to {lowest:.4g} (step {shape.step(at)}) and rises to {last:.4g} at the end"
    return Sign("loss-turns", text + _warm_up(record), shape.step(at), last > first)


def _warm_up(record: Record) -> str:
    rate = record.get("optim.lr")
    rate = rate.finite() if rate is not None else None
    if rate is None or not len(rate) or not rate.first < WARM_UP * float(rate.values.max()):
        return ""
    peak = int(np.argmax(rate.values))
    return f"; the learning rate rises to {rate.values[peak]:.3g} until step {rate.steps[peak]}"


def _swings(shape: Shape) -> Sign | None:
    """Up and down again and again, by more than its noise; single points count for nothing."""
    values = np.median(sliding_window_view(shape.series.values, 3), axis=1)
    least = max(JUMP * shape.scatter, SWING * abs(float(np.median(values))))
    turns = sorted(_turns(values.tolist(), least))
    if len(turns) < SWINGS:
        return None
    half = len(turns) // 2
    low, high = float(np.median(turns[:half])), float(np.median(turns[half:]))
    text = (
        f"{shape.what} swings up and down {len(turns)} times, between about {low:.3g} and {high:.3g}; it is at "
        f"{shape.first:.4g} at first and at {shape.last:.4g} at the end"
    )
    return Sign("loss-swings", text)


def _turns(values: list[float], least: float) -> list[float]:
    """Tops and bottoms after which a curve goes back by `least` or more."""
    turns: list[float] = []
    high = low = values[0]
    rises: bool | None = None
    for value in values:
        if rises is not False:
            high = max(high, value)
            if value < high - least:
                turns.append(high)
                rises, low = False, value
        if rises is not True:
            low = min(low, value)
            if value > low + least:
                turns.append(low)
                rises, high = True, value
    return turns


def _jumps(shape: Shape) -> list[Sign]:
    """Above the lowest level so far, and back again."""
    values, steps = shape.series.values, shape.series.steps
    lowest = np.minimum.accumulate(shape.levels)
    base = np.concatenate([np.full(shape.width - 1, lowest[0]), lowest])
    above = values > base + np.maximum(JUMP * shape.scatter, JUMP_SHARE * np.abs(base))
    above[: shape.width] = False
    if not above.any():
        return []
    groups = np.split(np.flatnonzero(above), np.flatnonzero(np.diff(np.flatnonzero(above)) > shape.width) + 1)  # fmt: skip
    worst = max(groups, key=lambda group: float(values[group].max()))
    top = int(worst[np.argmax(values[worst])])
    back = int(worst[-1]) + 1
    text = f"{shape.what} jumps from {base[top]:.4g} to {values[top]:.4g} at step {steps[top]}"
    if back < len(values):
        text += f" and is back by step {steps[back]}"
    if len(groups) > 1:
        text += f"; it jumps {len(groups)} times in all"
    return [Sign("loss-jumps", text, int(steps[groups[0][0]]))]


def _calm(record: Record, shape: Shape) -> Sign:
    first, last = shape.first, shape.last
    known, guess = _known_level(record, last)
    if first - last <= shape.differ(first):
        text = f"{shape.what} does not fall: {first:.4g} at first, {last:.4g} at the end{known}"
        return Sign("loss-flat", text, int(shape.series.steps[0]), guess)
    off = np.abs(shape.levels - last) > shape.differ(last)
    begin = int(np.flatnonzero(off)[-1]) + 1 if off.any() else 0
    if len(shape.levels) - begin >= PLATEAU * len(shape.series):
        text = f"{shape.what} falls from {first:.4g} to {last:.4g} by step {shape.step(begin)} and stays there{known}"
        return Sign("loss-plateau", text, shape.step(begin), guess)
    return Sign("loss-falls", f"{shape.what} falls from {first:.4g} to {last:.4g}")


def _known_level(record: Record, level: float) -> tuple[str, bool]:
    """What stands at this level, in words; known only with the vocabulary or the counts of the tokens."""
    size = (record.fact("imported") or {}).get("vocab_size")
    if size and abs(level - math.log(size)) < ON_LEVEL:
        return f", the level of a blind guess among {size} tokens ({math.log(size):.4g})", True
    counts = record.get("ladder.unigram")
    if counts is not None and len(counts.finite()):
        unigram = counts.finite().tail(3).median()
        if abs(level - unigram) < ON_LEVEL:
            return f", the level of the tokens' frequencies ({unigram:.4g})", True
    return "", False


def _norm(record: Record) -> list[Sign]:
    norm, loss = record.get("grad.norm"), loss_of(record)
    if norm is None or not len(norm):
        return []
    if len(norm) >= POINTS and not norm.values.any():
        text = "the gradient norm is 0 at every logged step: nothing reaches the weights"
        return [Sign("gradient-zero", text, int(norm.steps[0]), True)]
    bad = norm.where(lambda values: ~np.isfinite(values))
    if not len(bad) or (loss is not None and _zeros(record, loss) is not None):
        return []
    to_the_end = not math.isfinite(norm.last)
    text = f"the gradient norm is NaN or infinite at {len(bad)} of {len(norm)} points, first at step {bad.steps[0]}"
    text += ", and at the end" if to_the_end else ""
    return [Sign("gradient-not-finite", text, int(bad.steps[0]), to_the_end)]


def _rate(record: Record) -> list[Sign]:
    rate = record.get("optim.lr")
    if rate is None or len(rate.finite()) < POINTS:
        return []
    values = rate.finite().values
    if not values.any():
        text = "the learning rate is 0 at every logged step: nothing can be learned"
        return [Sign("rate-zero", text, int(rate.steps[0]), True)]
    alive = np.flatnonzero(values)[-1] + 1
    if len(values) - alive >= POINTS:
        since = int(rate.finite().steps[alive])
        return [Sign("rate-gone", f"the learning rate is 0 from step {since} to the end", since)]
    if np.ptp(values) == 0:
        return [Sign("rate-constant", f"the learning rate is {values[0]:.3g} at every logged step")]
    return []
