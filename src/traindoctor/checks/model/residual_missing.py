from collections.abc import Mapping
from typing import Any

import numpy as np

from traindoctor.checks.base import Outcome, check, done_exam, evidence, wanted_exam
from traindoctor.checks.consequences import NOT_LEARNING, NOTHING_PASSES
from traindoctor.checks.course import course_of
from traindoctor.record import Record

# One attention may pool or cross without a way around it; two and more are a stack.
STACK = 2
# Two averages in a row do not lose the input: graph attention networks of two layers have no way around and learn.
# The sick stacks had 4 to 10 attentions (5 scripts). Up to this many only a run that does not learn is suspected.
SHALLOW = 2
# What goes around over what goes through: 0.9 to 9 in 13 sound runs (0.05 with strong blocks on small embeddings).
# A gate that starts at sigmoid(-10) leaves 5e-5 of it.
CLOSED = 1e-3

# Gates start at 0.7 to 0.95 for the way around where they are meant to help, at 0.5 without a bias; 0.5 of 16 in a row
# is as much as nothing too, but it learns: a run that does is left alone.
SHUT, GATES, STEPS = 0.05, 4, 40


@check(
    code="MOD008",
    slug="residual-missing",
    title="The blocks have no skip path",
    wants=["residual"],
    undecided="the same model with a skip path around each block was not trained",
    explains=(*NOTHING_PASSES, "dead-activations", "norm-wrong", *NOT_LEARNING),
)
def residual_missing(record: Record) -> Outcome:
    """
    ## What it does
    Reads from a recorded training step whether a sum joins what goes through each attention (and each MLP) with what goes around
    it, and how large the two are; for gated sums, how much the gates let around.
    ## Why it matters
    Without a skip path, the input is averaged away layer by layer: within tens of steps all outputs are the same.
    ## How to fix
    `x = x + attention(norm(x))`, and the same for the MLP.
    ## When it stays silent
    Gates that are nearly shut and two attentions without a sum (graph attention networks) in runs that learn. A single
    attention, attention that pools, other layers beside two attentions (a convolutional network with attention in it), and single blocks without a sum among others that have one.
    """
    result = wanted_exam(record, "residual")
    values = result.values
    attentions, around = values["attentions"], values["attentions_bypassed"]
    acts, acts_around = values["activations"], values["activations_bypassed"]
    if attentions < STACK:
        return residual_missing.not_applicable("the model has no stack of attention layers")
    if around == 0:
        return no_way_around(record, values, result.step)
    closed = [s for s in values["summands"] if s["around"] <= CLOSED * s["through"]]
    if len(closed) * 2 >= max(2, len(values["summands"])):
        return residual_missing.finding(
            evidence(
                "residual sums to which the skip path adds nothing",
                len(closed),
                0,
                step=result.step,
            ),
            where=closed[0]["module"] or None,
            line=closed[0]["line"],
            since_step=0,
            summary="The skip paths are there but contribute next to nothing",
            grade="exact",
        )
    shut = nearly_shut(record)
    if shut is not None:
        return shut
    if acts >= attentions and acts_around == 0 and values.get("depth", attentions) > SHALLOW:
        return residual_missing.finding(
            evidence("MLPs with a skip path", acts_around, acts, step=result.step),
            grade="statistic",
            since_step=0,
            summary="The MLPs have no skip path",
        )
    return residual_missing.clear(f"{around} of {attentions} attention layers have a skip path")


def no_way_around(record: Record, values: Mapping[str, Any], step: int) -> Outcome:
    attentions = values["attentions"]
    depth = values.get("depth", attentions)
    items = [evidence("attention layers with a skip path", 0, attentions, step=step)]
    own = own_share(record)
    if own is not None:
        items.append(evidence("share of a token in its own output", own, "near 1"))
    shallow = depth <= SHALLOW
    course = course_of(record) if shallow else None
    if shallow and (course is None or record.num_steps < STEPS):
        return residual_missing.not_judged(
            "two attention layers without a skip path; the loss has not been seen for long enough"
        )
    if course is not None and course.learned:
        return residual_missing.clear(
            "two attention layers without a skip path, and the run learns"
        )
    return residual_missing.finding(
        *items,
        where=next((m for m in values["without"] if m), None),
        line=values["line"],
        since_step=0,
        status="possible" if shallow else None,
        grade="exact",
    )


def nearly_shut(record: Record) -> Outcome | None:
    """Highway gates t * f(x) + (1 - t) * x of a stack that let next to nothing around."""
    result = wanted_exam(record, "residual")
    mixes = [s for s in result.values["summands"] if s.get("carry") is not None]
    if len(mixes) < GATES or 2 * len(mixes) < len(result.values["summands"]):
        return None
    carry = float(np.median([s["carry"] for s in mixes]))
    if carry > SHUT:
        return None
    course = course_of(record)
    if course is None or record.num_steps < STEPS:
        return residual_missing.not_judged(
            "the gates are nearly closed; the loss has not been seen for long enough"
        )
    if course.learned or course.broke:
        return None
    return residual_missing.finding(
        evidence(
            "share of the input that the gates pass around a block, median",
            carry,
            0.5,
            noise=0.1,
            step=result.step,
        ),
        evidence("gates in a row", len(mixes)),
        evidence("loss at the end", course.last, f"well under {course.first:.3g}, the first loss"),
        grade="statistic",
        where=mixes[0]["module"] or None,
        line=mixes[0]["line"],
        since_step=0,
        summary=(
            "The skip paths are gated and the gates are nearly closed: next to nothing "
            "passes through them"
        ),
        remedy=(
            "Initialise the gates so that the skip path is open: a bias of -1 to -3 in t of "
            "t * f(x) + (1 - t) * x."
        ),
    )


def own_share(record: Record) -> float | None:
    result = done_exam(record, "dependence")
    if result is None:
        return None
    shares = [p["own_share"] for p in result.values["pairs"] if p.get("own_share") is not None]
    return min(shares, default=None)
