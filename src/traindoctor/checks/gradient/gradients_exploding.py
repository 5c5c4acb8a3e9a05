"""Gradient norms grow without bound."""

from __future__ import annotations

import numpy as np

from traindoctor.checks.base import Outcome, check, evidence
from traindoctor.checks.loss.base import crash_of, not_finite_from, place, swollen
from traindoctor.record import Record

# Healthy runs stay within a factor of 100 of their early norm; a run on its way to NaN leaves that within steps.
GROWTH = 1e3
EARLY = 10


@check(
    code="GRD004",
    slug="gradients-exploding",
    title="Gradient norms grow by orders of magnitude",
    needs=["grad.norm"],
    min_steps=3,
    since="0.1",
)
def gradients_exploding(record: Record) -> Outcome | None:
    """
    ## What it does
    Compares the largest gradient norm with the median of the first steps. Where the run broke, it looks at how large
    the values were that entered the op that overflowed.
    ## Why it matters
    Each step is thrown further than the last; the loss rises and ends in NaN.
    ## How to fix
    Clip the norm (`clip_grad_norm_(model.parameters(), 1.0)`), shorten the rate, normalise deep or recurrent parts.
    ## When it stays silent
    Single spikes that clipping catches, norms that rise while the loss falls by a few times. Named first only when
    nothing else (rate, scale, initialisation, a wrong backward) explains it.
    """
    if (overflow := activations_overflow(record)) is not None:
        return overflow
    norms = record["grad.norm"]
    finite = norms.finite()
    if len(finite) < 3:
        return gradients_exploding.not_judged("hardly any gradient norm is finite")
    early = float(np.median(finite.values[:EARLY]))
    grown = finite.where(lambda v: v > GROWTH * max(early, 1e-12))
    broke = not_finite_from(record)
    # Many steps, or the last ones before the end: a spike that passes is no explosion.
    lasting = len(grown) >= 0.1 * len(finite) or (broke is not None and len(grown) > 0)
    if not len(grown) or not lasting:
        return gradients_exploding.clear(
            f"largest norm {float(finite.values.max()):.3g}, {early:.3g} at first"
        )
    largest = float(grown.values.max())
    return gradients_exploding.finding(
        evidence(
            "largest gradient norm", largest, early, noise=GROWTH * early, step=int(grown.steps[0])
        ),
        grade="statistic",
        summary=f"the gradient norm grows from {early:.3g} to {largest:.3g}",
        since_step=int(grown.steps[0]),
    )


def activations_overflow(record: Record) -> Outcome | None:
    """Values that grew from layer to layer (no norm, a gain above 1, recurrence) until a product overflows."""
    crash = crash_of(record)
    size = None if crash is None else swollen(crash.values)
    if crash is None or size is None or not crash.values.get("weights_finite", False):
        return None
    values = crash.values
    return gradients_exploding.finding(
        evidence(
            f"size of what enters {values['op']}", size, "below 1e4", step=int(values["step"])
        ),
        evidence("largest weight", values["largest_weight"]),
        grade="statistic",
        summary=f"Activations grow to {size:.1g} on their way through the model and overflow in {values['op']} at "
        f"{place(values)}",
        where=values["module"] or None,
        line=place(values),
        since_step=int(values["step"]),
    )
