from typing import Any

from traindoctor.checks import laws
from traindoctor.checks.base import NotApplicable, Outcome, check, evidence, wanted_exam
from traindoctor.checks.course import above_level
from traindoctor.record import Record

TOKENS, NUMBERS = "dependence", "numbers_seen"
# Movement of an earlier score when later tokens change, over the spread of scores. Sound masks: exactly 0 in 60
# runs; a mask of -20 gives 2e-6 and harms nobody; faults gave 9e-4 (a soft mask of -10) to 6.
LEAK = 1e-4
# Attention that leaks stays inside a row. What moves other rows too, and is no attention, is a normalisation
# over the batch: another cause.
MIXED = 1e-4
ATTENTION = frozenset(
    "softmax matmul bmm __matmul__ einsum baddbmm scaled_dot_product_attention multi_head_attention_forward".split()
)
NORMALISED = "other examples change as well, so it is a normalisation and not the mask"
BESIDE = (
    "Read the prediction from a position before the answer goes in: of the tokens "
    "return, state, action, predict the action from the state."
)
# Better than a count model that sees four tokens back, on rows never seen: only a leak does that so early.
TOO_GOOD, STEPS, FRESH = 0.1, 20, 0.9


@check(
    code="MOD001",
    slug="causal-mask-leak",
    title="A prediction sees the token it has to predict",
    law=laws.UNSEEN,
    undecided="an autoencoder sees its targets on purpose",
    explains=("overfitting", "greedy-repetition", "undertrained"),
    urgent=True,
    essential=True,
    signs=("loss-too-good",),
)
def causal_mask_leak(record: Record) -> Outcome:
    """
    ## What it does
    Changes the second half of one row's tokens at the embedding call, runs the step again and looks whether
    scores before the change move. "Supposed to be causal" is no setting: the targets are the next inputs. For numbers
    (series, frames, states, actions) each target is looked for in the batch by its value and changed where it stands.
    ## Why it matters
    The model copies the answer from its input: the loss falls below what is possible, generated text is garbage.
    ## How to fix
    Pass a causal mask (`is_causal=True`, or -inf above the diagonal) to every attention; pad convolutions on the
    left only; normalise over features, not over time. Hugging Face: `is_decoder=True` for encoder models.
    ## When it stays silent
    Masked language models, encoders and prefix models: their targets do not stand ahead in the input, or the
    positions that see ahead do not count. A soft mask that lets through less than 1e-4. A source text that holds the
    targets too (copying), beside a decoder whose own tokens are hidden until their turn. Autoencoders, and numbers that noise
    or a mask is laid over.
    """
    left_open = causal_mask_leak.without(record, TOKENS)
    if isinstance(left_open, NotApplicable):
        return of_numbers(record, left_open)
    if left_open is not None:
        return left_open
    result = wanted_exam(record, TOKENS)
    pairs = [p for p in result.values["pairs"] if p["expects_causal"]]
    if not pairs:
        return causal_mask_leak.clear("not a next-token task: the targets are not the next inputs")
    # Two look-ups that both hide what is ahead are no source of each other.
    pairs = [p for p in pairs if not is_a_source(p, pairs)] or pairs
    pair = max(pairs, key=lambda p: p.get("future", -1.0))
    if not pair["finite"] or "future" not in pair:
        return causal_mask_leak.not_judged("the logits are not finite")
    if pair["future"] < LEAK:
        return causal_mask_leak.clear(
            f"earlier predictions change by {pair['future']:.1g} when later tokens change"
        )
    if pair["other_rows"] > MIXED and pair.get("mixing_op") not in ATTENTION:
        return causal_mask_leak.clear(NORMALISED)
    items = [
        evidence(
            "change of earlier logits when later tokens change",
            pair["future"],
            0.0,
            noise=1e-6,
            step=result.step,
        )
    ]
    better = too_good(record)
    if better is not None:
        items.append(evidence("loss minus that of a 5-gram model", better, "above 0"))
    return causal_mask_leak.finding(
        *items,
        where=pair.get("leaking_module") or None,
        line=pair.get("leaking_line"),
        since_step=0,
        summary=(
            "A prediction sees the token it has to predict: later tokens reach back "
            f"{pair['reach']} positions"
        ),
        grade="exact",
    )


def of_numbers(record: Record, no_tokens: Outcome) -> Outcome:
    """The same for numbers: a series that predicts itself, an action beside the states that it answers."""
    left_open = causal_mask_leak.without(record, NUMBERS)
    if isinstance(left_open, NotApplicable):
        return no_tokens
    if left_open is not None:
        return left_open
    result = wanted_exam(record, NUMBERS)
    pairs = [pair for pair in result.values["pairs"] if pair["finite"]]
    if not pairs:
        return causal_mask_leak.not_judged("the predictions are not finite")
    for pair in pairs:
        alike = not pair["ahead"] and reads_its_answer(pair)
        if pair["own"] < LEAK or not (pair["ahead"] or alike):
            continue
        if pair["other_rows"] > MIXED:
            return causal_mask_leak.clear(NORMALISED)
        return causal_mask_leak.finding(
            evidence(
                "change of a prediction when its own target changes in the input",
                pair["own"],
                0.0,
                noise=1e-6,
                step=result.step,
            ),
            where=pair.get("where"),
            line=pair["line"],
            since_step=0,
            summary="A prediction sees the value it has to predict: "
            + (
                "it is given what it is asked to forecast"
                if pair["ahead"]
                else "it is read from the token that holds that number"
            ),
            remedy=None if pair["ahead"] else BESIDE,
            grade="exact" if pair["ahead"] else "statistic",
        )
    return causal_mask_leak.clear("no forecast depends on the value it has to predict")


def reads_its_answer(pair: dict[str, Any]) -> bool:
    """Of several inputs, place by place, one is the target; what comes later is hidden, and nothing else is asked for."""
    hidden = pair["before"] == 0 < pair["after"]
    return bool(hidden and pair["beside"] and pair["as_it_is"] and pair["alone"])


def is_a_source(pair: dict[str, Any], pairs: list[dict[str, Any]]) -> bool:
    """Another look-up of the same loss brings the same tokens, uses them, and hides those ahead: this one is read freely."""
    if pair.get("loss") is None:
        return False
    return any(
        other is not pair
        and other.get("loss") == pair["loss"]
        and other.get("future", LEAK) < LEAK < other.get("after", 0.0)
        for other in pairs
    )


def too_good(record: Record) -> float | None:
    """Loss minus the 5-gram rung over the last steps, where rows are new and it is clearly negative."""
    gap, new = above_level(record, "ladder.fivegram"), record.get("batch.new_rows")
    if gap is None or new is None or len(gap) < STEPS or new.tail(STEPS).median() < FRESH:
        return None
    late = gap.tail(STEPS).median()
    return late if late < -TOO_GOOD else None
