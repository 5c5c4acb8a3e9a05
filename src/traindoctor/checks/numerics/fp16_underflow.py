import math

import numpy as np

from traindoctor.checks import laws
from traindoctor.checks.base import Outcome, check, evidence, wanted_exam
from traindoctor.checks.consequences import TOO_SHORT
from traindoctor.checks.course import course_of
from traindoctor.checks.optimizer.base import groups_of
from traindoctor.record import Record

# Share of the gradient's entries that float16 turns into 0 though they are not. A right scale leaves a few per cent.
LOST = 0.5
# Share of tensors that get nothing at all: the rest may learn, these do not.
WHOLE = 0.25
# The gradient as a whole is off by this share, and by a third of it at most when the loss is larger: numbers between
# 6e-8 and 6e-5 lose their bits before they are 0. Sound runs: 1e-3 to 1e-2; a mean over all classes: 0.3 to 2.
ERROR, CURED = 0.2, 3.0
# Share of the entries with a gradient, in the median tensor, whose mean square is 0 after the step. Sound: 0 (160 runs); kept
# in float16: 0.59 and 0.61 (one script), in eight bits: 0.16 (another).
SQUARES = 0.05
# Smallest positive float16 number; Adam's usual eps of 1e-8 is 0 below it.
SMALLEST = 6e-8


@check(
    code="NUM002",
    slug="fp16-underflow",
    title="Gradients or settings are too small for float16 and become 0",
    wants=["half_gradients"],
    at_once=lambda record: lost_squares(record),
    law=laws.RULE,
    explains=("gradients-vanishing", "gradient-not-flowing", "nan-from-op", *TOO_SHORT),
)
def fp16_underflow(record: Record) -> Outcome:
    """
    ## What it does
    Replays a step in float64 and counts the gradient entries that are 0 in the run although they should not be; holds
    the gradient as a whole against it, as it is and with a larger loss; looks at Adam's eps where the optimizer's state is in float16;
    and, of any optimizer that keeps a mean of squares, whether it is 0 where the gradient is not.
    ## Why it matters
    float16 knows nothing under 6e-8: small gradients vanish, and an eps of 1e-8 is 0, so that a zero second moment
    divides by zero. The square of a gradient of 2e-4 is 0: Adam then divides by eps alone.
    ## How to fix
    Scale the loss with `torch.amp.GradScaler`, keep weights and optimizer state in float32, or use bfloat16.
    ## When it stays silent
    Runs that do not compute in float16, zeros that are zeros in float64 too (unused tokens, ReLU).
    """
    result = wanted_exam(record, "half_gradients")
    values = result.values
    if "float16" not in values["dtypes"]:
        return fp16_underflow.clear("the step does not use float16")
    # The model's weights may be filled from copies that the optimizer holds.
    half = [g for g in groups_of(record) if "float16" in g.get("dtypes", [values["weights"]])]
    tiny = [g["eps"] for g in half if 0 < float(g.get("eps") or 1.0) < SMALLEST]
    if tiny:
        return fp16_underflow.finding(
            evidence("eps of the optimizer", tiny[0], "6e-8 or more"),
            summary=f"the optimizer's state is float16, where eps = {tiny[0]:g} is 0",
            since_step=0,
            status="likely",
            grade="exact",
        )
    lost = float(values["gradient_lost"])
    course = course_of(record)
    learns = course is not None and course.learned and values.get("tensors_lost", 0.0) < WHOLE
    error, scaled = float(values.get("error", 0.0)), float(values.get("error_scaled", 0.0))
    if lost < LOST:
        # A gradient that is no number left the range at its upper end.
        if not ERROR <= error < math.inf or error < CURED * scaled:
            return fp16_underflow.clear(f"{lost:.1%} of the gradient is lost to float16")
        return fp16_underflow.finding(
            evidence(
                "relative error of the gradient against float64",
                error,
                0.0,
                noise=0.01,
                step=result.step,
            ),
            evidence("the same with a scaled loss", scaled, 0.0, noise=0.01, step=result.step),
            summary=(
                f"the gradient is off by {error:.0%} in float16, but only by {scaled:.1%} with a "
                "scaled loss: it underflows on the way"
            ),
            where=values.get("worst_layer"),
            since_step=0,
            status="possible" if learns else None,
            grade="exact",
        )
    return fp16_underflow.finding(
        evidence(
            "gradient entries that become 0 in float16", lost, 0.0, noise=0.05, step=result.step
        ),
        summary=f"{lost:.0%} of the gradient's entries are 0 in float16 and not in float64",
        where=values.get("worst_layer"),
        since_step=0,
        status="possible" if learns else None,
        grade="exact",
    )


def lost_squares(record: Record) -> Outcome | None:
    """The optimizer's mean of squares is 0 where the gradient that it has just seen is not."""
    table = record.layers("adam.lost")
    if table is None or not len(table):
        return None
    shares = table.medians()
    known = shares[np.isfinite(shares)]
    share = float(np.median(known)) if len(known) else 0.0
    if share < SQUARES:
        return None
    return fp16_underflow.finding(
        evidence(
            "entries with a gradient whose second moment is 0",
            share,
            0.0,
            step=int(table.steps[-1]),
        ),
        summary=(
            f"the optimizer's second moment is 0 in {share:.0%} of the entries that have a "
            "gradient: the squares underflow in its dtype"
        ),
        remedy=(
            "Keep the optimizer's second moment in float32 or bfloat16: the smallest "
            "float16 is 6e-8, the square of 2e-4."
        ),
        where=table.layers[int(np.nanargmax(shares))],
        since_step=int(table.steps[0]),
        grade="exact",
    )
