"""What a person would see on the curves. A symptom is never a cause; it says that one must exist."""

import math
from dataclasses import dataclass

import numpy as np

from traindoctor.checks.course import LATE, SOLVED, above_level, constant_ratio, every_loss, loss_of
from traindoctor.checks.data.base import share_of_variance
from traindoctor.checks.experiments import HELD_FIXED
from traindoctor.record import Record, Series
from traindoctor.record.stages import exam_and_stage, stretches

# Fewer points than this make no trend.
MIN_POINTS = 20
# A rise of the loss by a fifth over its best level is no noise of batches once windows are averaged.
RISE = 0.2
# Of what the loss had fallen it has gained back so much: the run ends as if it had not learned.
REGAINED = 0.5
# The loss within this many nats of a rung, for 40 steps, is "on the rung" (lab: healthy runs stay <= 16 steps).
ON_RUNG = 0.05
RUNG_STEPS = 40
# A loss this close to ln(classes), or above, is a blind guess.
GUESS = 0.1
# A flat loss this near to ln 2 is that of the toss of a coin.
COIN = 0.005
# The last points whose mean tells that the run is leaving the rung downwards.
LEAVING = 4
# Standard errors by which later losses, whose level was not counted, must lie under the last level.
SURE = 4.0
# A squared error at this share of the targets' variance after 40 steps is no better than guessing: batches of 48 rows
# vary by 0.1, their mean over 40 steps by 0.02.
AT_VARIANCE = 0.95
# Better than a count model of the last five tokens by this much is too good for a next-token model.
TOO_GOOD = 0.1
# Nine steps in ten clipped is "nearly every step"; healthy warm-ups have it too, so it is only a symptom.
CLIPPED = 0.9


@dataclass(frozen=True)
class Symptom:
    name: str
    summary: str
    since_step: int | None = None
    grave: bool = False  # a run that shows it cannot be called healthy


def symptoms(record: Record) -> tuple[Symptom, ...]:
    """Every symptom the record shows, the grave ones first.

    A stage with an optimizer of its own begins a course of its own: fine-tuning on other texts starts at a higher loss.
    """
    stages = [stage for stage in stretches(record) or [record] if not _moves(record, stage)]
    courses = [symptom for stage in stages for symptom in (*_rising(stage), *_flat(record, stage))]
    found = [
        *_not_finite(record),
        *{symptom.name: symptom for symptom in reversed(courses)}.values(),
        *_on_unigram_rung(record),
        *_at_variance(record),
        *_too_good(record),
        *_always_clipped(record),
    ]
    return tuple(sorted(found, key=lambda symptom: not symptom.grave))


def _not_finite(record: Record) -> list[Symptom]:
    for name in ("loss.root", "loss.read", "loss.token"):
        series = record.get(name)
        if series is None or not len(series):
            continue
        bad = series.where(lambda values: ~np.isfinite(values))
        # One skipped batch is GradScaler at work; a loss that ends or mostly stays non-finite is not.
        if len(bad) and (not math.isfinite(series.last) or len(bad) > len(series) / 10):
            step = int(bad.steps[0])
            return [
                Symptom(
                    "loss-not-finite",
                    f"the loss is NaN or infinite from step {step} on",
                    step,
                    True,
                )
            ]
    return []


def _windows(series: Series) -> tuple[float, float, float, float] | None:
    """Mean of the first and the last tenth, the lowest tenth and the noise of such a mean."""
    finite = series.finite()
    if len(finite) < MIN_POINTS:
        return None
    width = max(5, len(finite) // 10)
    sums = np.concatenate([[0.0], np.cumsum(finite.values)])
    means = (sums[width:] - sums[:-width]) / width
    noise = float(np.std(np.diff(finite.values)) / math.sqrt(2 * width))
    return float(means[0]), float(means[-1]), float(means.min()), noise


def _rising(record: Record) -> list[Symptom]:
    series = every_loss(record)
    windows = _windows(series) if series is not None else None
    if series is None or windows is None or _optimised_falls(record):
        return []
    first, last, lowest, noise = windows
    if last > first + max(5 * noise, RISE * abs(first)):
        if _has_no_floor(series):
            return []
        text = f"the loss rises: {first:.4g} at first, {last:.4g} at the end"
        return [Symptom("loss-rising", text, None, True)]
    if last > lowest * (1 + RISE) and last > lowest + max(5 * noise, RISE):
        text = f"the loss fell to {lowest:.4g} and is back at {last:.4g}"
        lost = last - lowest > REGAINED * (first - lowest)
        return [Symptom("loss-rebounds", text, None, lost)]
    return []


def _has_no_floor(series: Series) -> bool:
    """What falls below 0 is a reward, a margin or the logarithm of a density: its level is no measure of success."""
    return bool((series.finite().values < 0).any())


def _optimised_falls(record: Record) -> bool:
    """What backward is called on falls. A loss that it is made of (weighted, focal) may rise meanwhile, and rightly so."""
    root, loss = record.get("loss.root"), loss_of(record)
    if root is None or loss is None or constant_ratio(loss, root) is not None:
        return False
    windows = _windows(root)
    return windows is not None and windows[1] < windows[0] - 5 * windows[3]


def _moves(record: Record, stage: Record) -> bool:
    """What is held fixed in the stage's loss moves with the weights (a policy against itself, a codebook): so does the loss,
    and its level says nothing."""
    loss = loss_of(stage)
    if loss is None:
        return False
    first, last = loss.steps[0], loss.steps[-1]
    judged = [r for r in record.exam_results if exam_and_stage(r.exam)[0] == "tape_gradient"]
    for result in judged:
        step, share = result.values.get("step", result.step), result.values.get("held_fixed")
        # A record may come from an earlier version, or from anybody.
        if isinstance(step, int) and isinstance(share, float):
            if first <= step <= last and share > HELD_FIXED:
                return True
    return False


def _flat(record: Record, stage: Record) -> list[Symptom]:
    series = every_loss(stage)
    windows = _windows(series) if series is not None else None
    if series is None or windows is None or _optimised_falls(stage):
        return []
    first, last, _, noise = windows
    whole = every_loss(record)
    # What an earlier stage has learned to the end has nowhere to fall.
    if _has_no_floor(series) or (whole is not None and last < SOLVED * whole.first):
        return []
    if abs(last - first) <= max(3 * noise, 0.01 * abs(first)):
        text = f"the loss does not fall: {first:.4g} at first, {last:.4g} at the end"
        # Fine-tuning at a tiny rate is flat at a good level. At the level of a blind guess nothing was learned.
        classes = (stage.fact("loss.site") or {}).get("classes")
        guess = math.log(classes) if classes and classes > 1 else math.inf
        untrained = stage.get("loss.token") is not None and last >= guess - GUESS
        # A preference, a match, a yes or no: ln 2 from the first step to the last is the toss of a coin.
        untrained = untrained or abs(last - math.log(2)) < COIN
        return [Symptom("loss-flat", text, None, untrained)]
    return []


def _on_unigram_rung(record: Record) -> list[Symptom]:
    gap = above_level(record, "ladder.unigram")
    # Later points lie further apart: the last few say whether the run has left the rung by now.
    if gap is None or len(gap) < RUNG_STEPS or np.mean(gap.tail(LEAVING).values) < -ON_RUNG:
        return []
    means = np.convolve(gap.values, np.ones(20) / 20, mode="valid")
    on = np.abs(means) <= ON_RUNG
    length = 0
    for index in range(len(on) - 1, -1, -1):
        if not on[index]:
            break
        length += 1
    if length < RUNG_STEPS - 20:
        return []
    since = int(gap.steps[len(on) - length])
    if _left_since(record, int(gap.steps[-1])):
        return []
    text = (
        f"the loss stays at the entropy of the token frequencies ({record['ladder.unigram'].last:.3g} nats): "
        "the model makes no use of its input"
    )
    return [Symptom("loss-at-unigram", text, since, True)]


def _left_since(record: Record, step: int) -> bool:
    """Whether the losses behind that step, to which no level was counted any more, lie clearly under the last level."""
    loss = every_loss(record)
    if loss is None:
        return False
    later = loss.after(step + 1).finite().values
    late = later[len(later) // 2 :]
    if len(late) < LEAVING:
        return False
    error = float(np.std(late)) / math.sqrt(len(late))
    under = record["ladder.unigram"].last - float(np.mean(late))
    return under > max(ON_RUNG, SURE * error)


def _at_variance(record: Record) -> list[Symptom]:
    """A regression that does no better than the mean of its targets."""
    share = share_of_variance(record)
    if share is None or share < AT_VARIANCE:
        return []
    text = f"the squared error stays at {share:.2f} of the targets' variance: guessing their mean is as good"
    return [Symptom("loss-at-variance", text, None, True)]


def _too_good(record: Record) -> list[Symptom]:
    gap = above_level(record, "ladder.fivegram")
    if gap is None or len(gap) < MIN_POINTS:
        return []
    late = float(np.mean(gap.tail(LATE).values))
    if not late <= -TOO_GOOD:
        return []
    text = f"the loss is {-late:.2g} nats lower than that of a 5-gram model"
    return [Symptom("loss-too-good", text)]


def _always_clipped(record: Record) -> list[Symptom]:
    norm, limit = record.get("grad.norm"), record.get("clip.limit")
    if norm is None or limit is None or len(norm) < MIN_POINTS:
        return []
    _, norms, limits = norm.beside(limit)
    clipped = norms > limits
    if not len(clipped) or np.all(np.isnan(limits)) or float(np.mean(clipped)) < CLIPPED:
        return []
    text = f"{100 * float(np.mean(clipped)):.0f} % of the steps are clipped"
    return [Symptom("always-clipped", text)]
