import math
from dataclasses import dataclass

import numpy as np

from traindoctor.checks import laws
from traindoctor.checks.base import (
    Evidence,
    Finding,
    Outcome,
    check,
    done_exam,
    evidence,
    worth_asking,
)
from traindoctor.checks.consequences import TOO_SHORT
from traindoctor.checks.course import course_of
from traindoctor.checks.experiments import Experiment
from traindoctor.checks.gradient.base import RATIO, ClippedScaled, clipped_while_scaled
from traindoctor.checks.model.base import large_start
from traindoctor.checks.optimizer.base import groups_of
from traindoctor.record import Record

EXAM = "experiment_clip"
# Without an experiment only what no other reading allows.
RATIO_ALONE = 300.0
# The step that is left moves the weights by less than this share of their norm.
SHORT_STEP = 3e-4
# Limits in use are 0.25 to 5. Where weights start far too large, and the limit is one of these, what is cut are the
# norms of that start: a wider limit only shortens the way back from it.
USUAL_LIMIT = 0.25
# Fewer steps at which both the norm and the limit were seen tell nothing of a habit.
LEAST_STEPS = 10
# What a script does in a loop of its own, as the exam names it.
WORDS = {"clip": "by hand ", "unit clip": "by hand, each tensor or row separately, "}
REMEDIES = {
    "unit clip": (
        "Raise these limits a hundredfold so that only outliers are clipped; adaptive "
        "clipping usually allows a gradient of 0.01 to 0.1 of the weight norm."
    )
}


@dataclass(frozen=True)
class Cut:
    """Norm before clipping and the limit, in the middle of the run."""

    norm: float
    limit: float
    since: int
    words: str = ""
    remedy: str | None = None


@check(
    code="GRD006",
    slug="clip-too-tight",
    title="Clipping shortens nearly every step so much that the run crawls",
    needs=["clip.limit"],
    min_steps=10,
    law=laws.RULE,
    undecided="a higher limit could not be tried",
    explains=TOO_SHORT,
    signs=("always-clipped",),
)
def clip_too_tight(record: Record) -> Outcome:
    """
    ## What it does
    Compares the gradient norm before clipping with the limit, and replays steps with 10 and 100 times the limit.
    Clipping that the script does in a loop of its own is seen where gradients of different norms all arrive with
    the same one; a limit for each tensor or row (adaptive clipping), where each of these does. Where gradients are
    clipped before the scaler's factor is taken out, the limit that acts is that much smaller.
    ## Why it matters
    With SGD a limit far under the usual norm is a learning rate divided by their ratio.
    ## How to fix
    Set the limit near the norm of ordinary steps (1.0 is usual), so that only outliers are cut.
    ## When it stays silent
    Clipping on every step by a small factor, and optimizers that undo it (Adam divides by the same factor). A usual
    limit that cuts the gradients of weights that start far too large is named after those weights.
    """
    scaled = clipped_while_scaled(record)
    if scaled is not None and scaled.acts:
        return before_unscaling(scaled)
    seen = by_torch(record) if len(record["clip.limit"].finite()) else by_hand(record)
    if not isinstance(seen, Cut):
        return seen
    ratio = seen.norm / max(seen.limit, 1e-30)
    if not ratio >= RATIO:
        return clip_too_tight.clear(f"the median gradient norm is {ratio:.2g} times the limit")
    course = course_of(record)
    if course is not None and course.solved:
        return clip_too_tight.clear("the loss is already next to zero")
    items = [
        evidence("gradient norm relative to the clip limit (median)", ratio, 1.0, step=seen.since),
        evidence("clip limit", seen.limit, seen.norm),
    ]
    summary = (
        f"Clipping {seen.words}to {seen.limit:.3g} makes steps {ratio:.0f} times "
        f"shorter: gradient norms are around {seen.norm:.3g}"
    )
    result = record.exam(EXAM)
    if result is None:
        return clip_too_tight.not_judged("a higher limit was not tried", wants=EXAM)
    trial = Experiment.of(result)
    if trial is not None and trial.faithful:
        return by_trial(record, trial, seen, items, summary)
    update = record.get("update.ratio")
    short = update is not None and len(update) and update.median() < SHORT_STEP
    undone = any(group.get("betas") is not None for group in groups_of(record))
    if ratio >= RATIO_ALONE and short and not undone:
        assert update is not None
        items.append(evidence("update norm relative to weight norm", update.median(), 1e-3))
        return clip_too_tight.finding(
            *items, grade="statistic", summary=summary, since_step=seen.since
        )
    reason = "" if result.done or math.isnan(ratio) else f": {result.reason}"
    return clip_too_tight.not_judged(f"a higher limit could not be tried{reason}")


def by_trial(
    record: Record, trial: Experiment, seen: Cut, items: list[Evidence], summary: str
) -> Outcome:
    wider = [name for name in ("limit*10", "limit*100") if trial.wins(name)]
    if not wider:
        return clip_too_tight.clear("with a higher limit the run is no better")
    best = max(wider, key=trial.gain)
    items.append(trial.evidence(best, f"{best.removeprefix('limit*')} times the limit"))
    follows = isinstance(large_start(record), dict) and seen.limit >= USUAL_LIMIT
    return clip_too_tight.finding(
        *items,
        summary=summary,
        remedy=seen.remedy,
        since_step=seen.since,
        grade="statistic" if follows else "experiment",
    )


def before_unscaling(scaled: ClippedScaled) -> Finding:
    return clip_too_tight.finding(
        evidence("clip calls before `scaler.unscale_`", scaled.calls, 0),
        evidence("loss scale at that time", scaled.factor, 1.0),
        evidence("gradient norm relative to the clip limit (median)", scaled.ratio, 1.0),
        summary=(
            "Gradients are clipped while still multiplied by the loss scale "
            f"{scaled.factor:g} and unscaled afterwards, so every step is {scaled.ratio:.0f} "
            "times too short"
        ),
        remedy="Call `scaler.unscale_(optimizer)` between `backward()` and clipping.",
        since_step=scaled.since,
        grade="exact",
    )


def by_torch(record: Record) -> Cut | Outcome:
    """Where `clip_grad_norm_` is called."""
    limits = record["clip.limit"].finite()
    if (record.fact("clip") or {}).get("kind") == "value":
        return clip_too_tight.not_judged("gradients are clipped by value, not by norm")
    norms = record.get("grad.norm")
    if norms is None:
        return clip_too_tight.not_judged("the gradient norm was not seen", why="not-measured")
    norms = norms.finite()
    steps = np.intersect1d(norms.steps, limits.steps)
    if len(steps) < LEAST_STEPS:
        return clip_too_tight.not_judged(
            "gradient norm and clip limit were seen together on fewer than 10 steps"
        )
    norm = norms.values[np.isin(norms.steps, steps)]
    limit = limits.values[np.isin(limits.steps, steps)]
    ratio = float(np.median(norm / np.maximum(limit, 1e-30)))
    return Cut(ratio * float(np.median(limit)), float(np.median(limit)), int(steps[0]))


def by_hand(record: Record) -> Cut | Outcome:
    """Where the script clips in a loop of its own."""
    result = done_exam(record, "gradient_arrival")
    if worth_asking(record, "gradient_arrival"):
        return clip_too_tight.not_judged(
            "it is not known whether the script clips by hand", wants="gradient_arrival"
        )
    if result is None or result.values["by_hand"] not in WORDS:
        return clip_too_tight.not_applicable("the script does not clip")
    values, kind = result.values, result.values["by_hand"]
    return Cut(
        float(values["norm"]),
        float(values["value"]),
        int((values["steps"] or [0])[0]),
        WORDS[kind],
        REMEDIES.get(kind),
    )
