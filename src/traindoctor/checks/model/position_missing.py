from collections.abc import Mapping
from typing import Any

from traindoctor.checks import laws
from traindoctor.checks.base import (
    Evidence,
    Grade,
    Outcome,
    check,
    done_exam,
    evidence,
    wanted_exam,
)
from traindoctor.checks.consequences import NOT_LEARNING
from traindoctor.checks.course import course_of, late_levels, two_signs
from traindoctor.checks.data.base import ERRORS, GAIN, is_rounding, reference
from traindoctor.checks.optimizer.base import last_stage
from traindoctor.record import Record

# Permuted tokens move the scores by this share of what other tokens do, at least: 0.0096 and more in 62 sound scripts.
# Between rounding and this nothing is said.
ORDER = 1e-3
# Position tables that start at zero tell nothing at first.
SETTLED = 10
# A model that fits its data this well needs no order.
FITS = 0.3
# Share of the places whose code is another one's too. Sound: 0 in 34 runs with codes; the two sick scripts: all.
ALIKE = 0.5


@check(
    code="MOD005",
    slug="position-missing",
    title="The order of the tokens cannot reach the output",
    wants=["positions"],
    at_once=lambda record: told_apart(record),
    law=laws.ORDER,
    undecided="the order may be ignored on purpose: a set of tokens rather than a sequence",
    explains=NOT_LEARNING,
)
def position_missing(record: Record) -> Outcome:
    """
    ## What it does
    Permutes the tokens of each row at the embedding call and compares with the permuted outputs. Without any
    position signal they are the same to rounding, which is measured: what one unit in the last place of the weights
    does. The order is said to arrive only where it moves the outputs in earnest, as other tokens do.
    Patches, frames and features have no lookup: there the positions whose added codes are equal are exchanged, and
    all of them where codes multiply queries and keys.
    ## Why it matters
    Attention alone sees a bag of tokens: whatever depends on their order cannot be learned.
    ## How to fix
    Add position embeddings (learned, sinusoidal, rotary) to the tokens, with one entry per position: with
    `batch_first=True` index them by dimension 1.
    ## When it stays silent
    Next-token models: the causal mask is a position signal in itself. The first steps, where a position table
    may still be zero. Models that fit their data without order. Data of which a plain model with positions
    predicts no more than the same model without them.
    """
    result = wanted_exam(record, "positions")
    step = result.values["step"]
    pair = min(result.values["pairs"], key=lambda p: p["gap"])
    gap, other = pair["gap"], pair["replaced"]
    if not is_rounding(pair) and gap >= ORDER * other:
        return position_missing.clear(
            f"outputs change by {gap:.2g} when tokens are reordered, and by {other:.2g} when "
            "they are replaced"
        )
    if not is_rounding(pair):
        return position_missing.not_judged(
            (
                f"outputs change by {gap:.1g} when tokens are reordered, and by {other:.2g} when "
                "they are replaced: too little to count as using the order, too much for "
                "rounding"
            ),
            wants="positions" if step < SETTLED else None,
        )
    if step < SETTLED:
        return position_missing.not_judged(
            "token order has no effect yet; tested again later", wants="positions"
        )
    if fits(record):
        return position_missing.clear(
            "token order cannot reach the output, and the task is learned without it"
        )
    return without_order(record, pair, step)


def told_apart(record: Record) -> Outcome | None:
    """Of sequences that are no rows of tokens: do the codes that are added tell their places apart?"""
    asked = record.exam("positions")
    tokens = done_exam(record, "dependence") is not None
    if tokens or asked is None or asked.outcome != "not-applicable":
        return None
    result = record.exam("place_codes")
    if result is None:
        return position_missing.not_judged("not tested yet", wants="place_codes")
    values = result.values
    if result.outcome == "refused":
        return position_missing.not_judged(result.reason)
    if not result.done or "gap" not in values or values["alike"] < ALIKE * values["places"]:
        return None
    course = course_of(record)
    without_effect = is_rounding({**values, "gap": values["replaced"]})
    if not is_rounding(values) or (course is not None and course.solved):
        return None
    one_for_all = values["codes"] <= 1 and not values.get("turned")
    if (one_for_all or without_effect) and values["step"] < SETTLED:  # a table may start at zero
        return position_missing.not_judged(
            "token order has no effect yet; tested again later", wants="place_codes"
        )
    if without_effect:
        return None
    if values.get("turned"):
        return position_missing.finding(
            swapped("positions", values),
            summary=(
                "Queries and keys are multiplied by position codes, and still the model cannot tell "
                f"its {values['places']} positions apart: swapping them changes nothing"
            ),
            remedy=(
                "Let the codes run along the axis of the sequence: a table made for (B, T, heads, D) "
                "rotates by head where it is given (B, heads, T, D)."
            ),
            line=values["line"],
            since_step=0,
            grade="exact",
            # A set of places may be all that the task needs.
            status="likely" if course is not None and course.learned else None,
        )
    if values["codes"] == 0:
        return bag_of_pieces(record, values)
    return position_missing.finding(
        swapped("positions with the same embedding", values),
        evidence("distinct embeddings", values["codes"], values["places"]),
        summary=(
            f"{values['alike']} of {values['places']} positions share their embedding with "
            "another one, and swapping those changes nothing: the model cannot tell them "
            "apart"
        ),
        remedy=remedy(values),
        line=values["line"],
        since_step=0,
        grade="exact",
    )


def swapped(what: str, values: Mapping[str, Any]) -> Evidence:
    return evidence(
        f"change of the outputs when {what} are swapped",
        values["gap"],
        f"near {values['replaced']:.2g}, the change for other contents",
        noise=values["noise"],
        step=values["step"],
    )


def bag_of_pieces(record: Record, values: Mapping[str, Any]) -> Outcome:
    """Patches or frames without any code. What is left to learn may need their order; a bag may be all that is meant."""
    course, optimizers = course_of(record), record.get("optim.objects")
    # A set may be all that is meant: only a task that is not learned speaks against it.
    if two_signs(record) or (optimizers is not None and optimizers.last > 1):
        return position_missing.not_judged(
            "swapping patches or frames changes nothing, and the loss does not show whether "
            "the task is learned"
        )
    if course is None or course.learned or course.last < FITS * course.first:
        return position_missing.clear(
            "the task is learned without the order of its patches or frames"
        )
    return position_missing.finding(
        swapped("positions", values),
        summary=f"the model cannot tell the {values['places']} patches or frames of an input apart: swapping them changes nothing",
        remedy=(
            "Add a position embedding, one row per position, to the patches or frames "
            "before the first block."
        ),
        line=values["line"],
        since_step=0,
        grade="statistic",
    )


def remedy(values: Mapping[str, Any]) -> str:
    if values.get("by_example"):
        return (
            "The position table is indexed along the batch: with `batch_first=True` index "
            "it by dimension 1."
        )
    if values["codes"] == 1:
        return (
            "Every position gets the same embedding: initialise the position table, or let "
            "it train."
        )
    return (
        "Look at the embeddings of neighbouring positions: on a grid each needs its row "
        "and its column."
    )


def without_order(record: Record, pair: Mapping[str, Any], step: int) -> Outcome:
    """It is; whether that matters may have to be asked of a model that knows the order."""
    items = [
        evidence(
            "change of the outputs when tokens are permuted",
            pair["gap"],
            f"near {pair['replaced']:.2g}, the change for other tokens",
            noise=pair["noise"],
            step=step,
        )
    ]
    if not pair["pooled"]:
        return set_or_sequence(record, items, pair)
    # A set of tokens may be all that a classifier is meant to see: a model that knows their order is asked.
    meant = True
    if has_not_learned(record):
        learnable = reference(record)
        if learnable is None and record.exam("reference_model") is None:
            return position_missing.not_judged(
                "token order cannot reach the output; it is not known whether it matters",
                wants="reference_model",
            )
        if learnable is not None and learnable[0]:
            meant = False
            items.append(
                evidence(
                    (
                        "nats below the entropy of the labels that a reference model with positions "
                        "reaches"
                    ),
                    learnable[1],
                    "0, as in this run",
                    noise=learnable[2],
                )
            )
    # That order matters is then a plain model's word, not arithmetic.
    return position_missing.finding(
        *items,
        grade="statistic",
        line=pair["line"],
        since_step=0,
        status="possible" if meant else None,
    )


def set_or_sequence(record: Record, items: list[Evidence], pair: Mapping[str, Any]) -> Outcome:
    """One answer per place: whether order says anything about it is asked of two plain models, one without positions."""
    asked = record.exam("order_matters")
    if asked is None:
        return position_missing.not_judged(
            "token order cannot reach the output; it is not known whether it matters",
            wants="order_matters",
        )
    grade: Grade = "statistic"
    if asked.done:
        gain, noise = asked.values["gain"], asked.values["noise"]
        learned = asked.values["guessing"] - asked.values["without"]
        if gain > max(GAIN, ERRORS * noise):
            grade = "exact"
            items.append(evidence("nats that positions gain a plain model", gain, "0", noise=noise))
        elif learned > GAIN:
            return position_missing.clear(
                "token order cannot reach the output, and a plain model predicts no better with it"
            )
    return position_missing.finding(*items, grade=grade, line=pair["line"], since_step=0)


def has_not_learned(record: Record) -> bool:
    """The loss is no better than the frequencies of the labels. Of a later stage it may be another loss."""
    late = late_levels(record)
    return not last_stage(record) and late is not None and late[0] > late[1] - GAIN


def fits(record: Record) -> bool:
    late = late_levels(record)
    return late is not None and late[0] < FITS * late[1]
