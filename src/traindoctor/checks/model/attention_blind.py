from typing import Any

from traindoctor.checks import laws
from traindoctor.checks.base import Finding, Outcome, check, done_exam, evidence, wanted_exam
from traindoctor.checks.consequences import NOT_LEARNING
from traindoctor.checks.course import course_of
from traindoctor.checks.data.base import rolled_over_the_batch
from traindoctor.checks.model.base import WHOLE
from traindoctor.record import ExamResult, Record

# Exactly 0 against 1e-2 and more. Weights that are added up before they meet a value (their sum is 1, but for
# rounding) moved scores by 7e-7 of their spread on one processor and by 1 to 4e-6 on another.
NOTHING = 1e-5
MIXED = 1e-4
# torch's own attention never mixes examples unless the batch lies where time should.
ATTENTION_CALLS = ("scaled_dot_product_attention", "multi_head_attention_forward")
OVER_THE_BATCH = (
    "Attention runs over the examples of the batch instead of the positions of a sequence"
)
# Output projections that start at zero pass nothing at first and learn within a few steps.
SETTLED = 10
# Share of the predictions that do not move with their example. Ties that are broken by the place in the batch move a few.
STRAYED = 0.5


def of_numbers(record: Record) -> Outcome | None:
    """A model that takes no tokens: which axis its attentions mix is all that is asked."""
    outcome = along_the_batch(record)
    return outcome if outcome is None else of_other_examples(record, outcome)


def along_the_batch(record: Record) -> Outcome | None:
    tokens = record.exam("dependence")
    if tokens is None or tokens.outcome != "not-applicable":
        return None
    left_open = attention_blind.without(record, "rows_apart")
    if left_open is not None:
        return left_open
    result = wanted_exam(record, "rows_apart")
    seen = result.values["attentions"]
    known = [one for one in seen if one["batch"] is not None]
    # Some models attend over the examples on purpose, and over the places as well.
    if any(set(one["mixes"]) - {one["batch"]} for one in known):
        return attention_blind.clear("attention mixes the positions of a sequence")
    crossed = [one for one in known if one["mixes"]]
    # Behind the first one everything has met: the others are of its kind, or nothing is known of them.
    kinds = [(one["shape"], one["mixes"]) for one in crossed]
    if not crossed or any((one["shape"], one["mixes"]) not in kinds for one in seen):
        return attention_blind.not_judged(
            "it could not be told which axis of the attention is the batch"
        )
    first = crossed[0]
    return attention_blind.finding(
        evidence("attentions that mix examples of the batch", len(crossed), 0, step=result.step),
        evidence("attentions that mix positions of one sequence", 0, len(seen), step=result.step),
        summary=OVER_THE_BATCH,
        remedy=f"The values of the attention have the shape {tuple(first['shape'])}, and it adds up along axis "
        f"{first['batch']}, which is the batch: `batch_first=True` for inputs of shape (batch, time, features), or a "
        "transpose before it.",
        where=first["module"] or None,
        line=first["line"],
        since_step=0,
        grade="exact",
    )


def of_other_examples(record: Record, otherwise: Outcome) -> Outcome:
    """A run that does not learn: does a prediction depend on which examples stand around its own?"""
    course = course_of(record)
    if isinstance(otherwise, Finding) or course is None or not course.stuck:
        return otherwise
    left_open = attention_blind.without(record, "example_order")
    if left_open is not None:
        return left_open if record.exam("example_order") is None else otherwise
    result = wanted_exam(record, "example_order")
    if result.values["strayed"] < STRAYED:
        return otherwise
    return attention_blind.finding(
        evidence(
            "share of the predictions that change when the batch is put in another order",
            result.values["strayed"],
            0,
            step=result.step,
        ),
        evidence("loss at the end", course.last, f"clearly under {course.first:.3g}, as at first"),
        summary="A prediction is made of values of other examples: it changes when the batch is put in another order",
        remedy="At this line values of one example come to stand where another's belong: an index into rows of all "
        "examples needs the offset of its own (`index + arange(batch)[:, None] * length`), and where axes change "
        "places, `transpose` comes before `view` and `reshape`.",
        where=result.values["module"] or None,
        line=result.values["line"],
        since_step=0,
        grade="statistic",
    )


@check(
    code="MOD002",
    slug="attention-blind",
    title="Attention carries nothing over from other tokens",
    wants=["dependence"],
    at_once=of_numbers,
    law=laws.CONTEXT,
    undecided="some models let the examples of a batch compete for room, as experts with a capacity do",
    explains=("gradients-vanishing", *NOT_LEARNING),
)
def attention_blind(record: Record) -> Outcome:
    """
    ## What it does
    Changes one token at the embedding call and looks which scores move. If only its own place moves, attention
    passes nothing on; if other examples move instead of other positions, it attends over the batch. In models that take
    numbers (patches, frames, series) the values of each attention are changed along each of their axes.
    Where the loss does not fall, the batch is put in another order, too: each prediction must move with its example.
    Nor may the nearest context be hidden while earlier tokens are seen.
    ## Why it matters
    The model cannot use context: it ends at what the current token alone tells.
    ## How to fix
    Look at the mask: True means "may attend" for `scaled_dot_product_attention` and "may not" for
    `nn.MultiheadAttention`. Set `batch_first=True` for inputs of shape (batch, time, features).
    ## When it stays silent
    Output projections and gates that start at zero: it is asked again after some steps. Batches in
    (time, batch) order, recognised by the shift of the targets. Positions that read a memory or a source text and not
    each other.
    """
    return of_other_examples(record, of_tokens(record))


def of_tokens(record: Record) -> Outcome:
    result = wanted_exam(record, "dependence")
    if not result.values["attentions"]:
        return attention_blind.not_applicable("the model has no attention")
    pairs = [p for p in result.values["pairs"] if p["finite"] and "other_rows" in p]
    if not pairs:
        return attention_blind.not_judged("the logits are not finite")
    if rolled_over_the_batch(record) is not None:
        return attention_blind.clear("the targets were rolled along the batch axis, not along time")
    for pair in pairs:
        outcome = wrong_axis(pair, result)
        if outcome is not None:
            return outcome
    holes = [p for p in pairs if p.get("hole")]
    if holes:
        return blind_spot(holes[0], result)
    if any(not passes_nothing(p) for p in pairs):
        return attention_blind.clear("predictions change when another token changes")
    if any(not axis_is_told(p) and p["other_rows"] > NOTHING for p in pairs):
        # Inside the model a batch may stand as (time, batch): then the "other examples" are other places.
        return attention_blind.not_judged(
            "tokens affect other rows of the batch, which may be the positions of a "
            "transposed sequence"
        )
    if dead(record):
        return attention_blind.clear("nothing passes because a whole layer is dead")
    if any((p.get("stirred") or 0.0) > NOTHING for p in pairs):
        return attention_blind.clear(
            "predictions depend on other tokens once the weights have left zero"
        )
    if result.step < SETTLED and any(p.get("stirred") is None for p in pairs):
        return attention_blind.not_judged(
            "nothing passes at initialisation; tested again later", wants="dependence"
        )
    pair = pairs[0]
    value = pair.get("any_token", pair.get("other_places"))
    items = [
        evidence(
            "change of the logits at other positions",
            value,
            "0.01 or more",
            step=result.step,
        )
    ]
    if "one_token" in pair:
        own = pair["one_token"]
        items.append(evidence("change at the token's own position", own, step=result.step))
    return attention_blind.finding(
        *items,
        line=pair["line"],
        since_step=0,
        grade="exact",
    )


def blind_spot(pair: dict[str, Any], result: ExamResult) -> Outcome:
    """The most recent tokens are hidden: a mask that is aligned to the wrong corner where other keys stand in front."""
    return attention_blind.finding(
        evidence(
            "positions after a token that do not see it, followed by positions that do",
            pair["hole"],
            0,
            step=result.step,
        ),
        summary=(
            f"A prediction does not see the {pair['hole']} tokens just before its own, "
            "although it sees earlier ones: the mask is shifted"
        ),
        remedy=(
            "Count the keys in front of the text (memory, prefix, cache): query i may see "
            "keys up to i plus their number."
        ),
        line=pair["line"],
        since_step=0,
        grade="exact",
    )


def passes_nothing(pair: dict[str, Any]) -> bool:
    if pair["pooled"]:
        return bool(pair["any_token"] <= NOTHING)
    # What another input says (a memory, a source text) comes by attention just as well.
    brought = max(pair.get("other_places") or 0.0, pair.get("other_inputs", 0.0))
    return pair.get("other_places") is not None and bool(brought <= NOTHING)


def axis_is_told(pair: dict[str, Any]) -> bool:
    """By targets or pooling; or by codes of the places, which are added alike to every example."""
    return bool(pair["axis_is_known"] or pair.get("axis_has_codes"))


def wrong_axis(pair: dict[str, Any], result: ExamResult) -> Outcome | None:
    """Other examples move by attention; other places of the same example do not."""
    if pair["other_rows"] < MIXED or not axis_is_told(pair):
        return None
    by_attention = pair["axis_is_known"] and pair.get("mixing_op") in ATTENTION_CALLS
    if not by_attention and (pair["pooled"] or not passes_nothing(pair)):
        return None
    items = [
        evidence(
            "change of the logits of OTHER examples",
            pair["other_rows"],
            0.0,
            noise=1e-6,
            step=result.step,
        )
    ]
    if not pair["pooled"]:
        places = pair["other_places"]
        items.append(
            evidence("change at other positions of the same example", places, "0.01 or more")
        )
    return attention_blind.finding(
        *items,
        where=pair.get("mixing_module") or None,
        line=pair.get("mixing_line"),
        since_step=0,
        summary=OVER_THE_BATCH,
        grade="exact",
    )


def dead(record: Record) -> bool:
    result = done_exam(record, "dead_units")
    return bool(result and any(l["dead"] >= WHOLE for l in result.values["layers"]))
