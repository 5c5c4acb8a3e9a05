from statistics import median

from traindoctor.checks import laws
from traindoctor.checks.base import ENOUGH_LOOKS, Outcome, check, done_exam, evidence
from traindoctor.checks.consequences import NOT_LEARNING, TOO_LONG
from traindoctor.record import Record

# A resumed script may start once with old gradients; nine steps in ten is a habit.
SHARE = 0.9
# Rounding of a gradient that was set to zero by hand stays far below.
DIRTY = 1e-12
MIN_POINTS = 2
# What was there before backward, over the step's own gradient: rounding of the subtraction stays far below.
ROUNDING = 1e-6


@check(
    code="GRD001",
    slug="missing-zero-grad",
    title="Gradients are not cleared between optimizer steps",
    law=laws.FRESH,
    explains=(
        "lr-too-high",
        "clip-too-tight",
        "loss-scale-wrong",
        "no-warmup",
        "loss-gradient-mismatch",
        *TOO_LONG,
        *NOT_LEARNING,
    ),
    essential=True,
    signs=("always-clipped",),
)
def missing_zero_grad(record: Record) -> Outcome:
    """
    ## What it does
    Reads the norm of `.grad` at the backward passes after each optimizer step: None or 0 at one of them when all is well.
    ## Why it matters
    Old gradients add up: each step follows a sum over the past, and the loss swings or diverges.
    ## How to fix
    Call `optimizer.zero_grad()` once per optimizer step, before the first backward pass.
    ## When it stays silent
    Several backward passes before one step are accumulation, not a fault. With several optimizers (GANs) one
    network's gradients may lie about while the other learns, as long as they are gone before its own turn. So may they
    while a gradient cache is filled: that pass reaches no parameter.
    """
    into_grad = record.get("backward.into_grad")
    if into_grad is not None and len(into_grad) >= ENOUGH_LOOKS and not into_grad.values.any():
        return missing_zero_grad.not_applicable("no backward pass adds to .grad")
    courses = [leftovers(record), *by_optimizer(record)]
    points = max(courses, key=dirty_share)
    if len(points) < MIN_POINTS and record.exam("tape_gradient") is None:
        return missing_zero_grad.not_judged("too few steps were looked at", wants="tape_gradient")
    if not points and done_exam(record, "tape_gradient") is None:
        return missing_zero_grad.not_judged("`.grad` could not be read before a backward pass")
    if not points:
        return missing_zero_grad.not_judged("only the first step was looked at")
    if dirty_share(points) < SHARE:
        return missing_zero_grad.clear(
            f"`.grad` was clear before backward in {1 - dirty_share(points):.0%} of the "
            "steps looked at"
        )
    if len(points) < MIN_POINTS:
        return missing_zero_grad.not_judged("too few steps were looked at", wants="tape_gradient")
    dirty = {step: norm for step, norm in points.items() if not norm <= DIRTY}
    of_one = ", of one optimizer" if points is not courses[0] else ""
    return missing_zero_grad.finding(
        evidence(
            f"norm of `.grad` left over before backward{of_one}",
            median(dirty.values()),
            0.0,
            step=min(dirty),
        ),
        evidence("steps that start with old gradients", f"{len(dirty)} of {len(points)}", "none"),
        summary=f"`.grad` was not cleared before backward in {len(dirty)} of {len(points)} steps"
        + (" of one of the optimizers" if of_one else ""),
        since_step=min(dirty),
        grade="exact",
    )


def dirty_share(points: dict[int, float]) -> float:
    return sum(not norm <= DIRTY for norm in points.values()) / len(points) if points else 0.0


def by_optimizer(record: Record) -> list[dict[int, float]]:
    """The same for each of several optimizers, over its own steps but the first."""
    table = record.layers("grad.leftover_by_optimizer")
    if table is None:
        return []
    courses = [table.layer(name).finite() for name in table.layers]
    return [dict(list(course)[1:]) for course in courses if len(course) > MIN_POINTS]


def leftovers(record: Record) -> dict[int, float]:
    """Step -> norm of what lay in .grad; before the first step there is nothing to clear."""
    found: dict[int, float] = {}
    result = done_exam(record, "tape_gradient")
    alone = len(record.fact("optimizer.groups") or []) <= 1
    if result is not None and alone:
        # Of one optimizer: with several, what lay there may be another's and gone before its step. Relative to the step's own gradient; rounding of the subtraction stays under a millionth.
        found = {
            int(one["step"]): float(one["leftover"]) if one["leftover"] > ROUNDING else 0.0
            for one in result.values["steps"]
            if one["step"] > 0
        }
    series = record.get("grad.leftover_norm")
    if series is not None:
        found |= {step: norm for step, norm in series if step > 0}
    return found
