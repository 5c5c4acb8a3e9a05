from collections import Counter
from collections.abc import Mapping
from functools import partial
from typing import Any

from traindoctor.checks import laws
from traindoctor.checks.base import Outcome, check, done_exam, evidence, wanted_exam
from traindoctor.checks.consequences import NOT_LEARNING
from traindoctor.record import Record

# A mask passes nothing exactly or lets through 1e-3 and more (84 runs).
NOTHING = 1e-5
# Tokens drawn at random tell nothing of their neighbours: a task of copying, not a text.
TEXT_NATS = 0.1
# Points at the end of a course whose median stands for it.
LATE = 10
ONCE = (
    "Remove one of the two shifts: inputs `ids[:, :-1]` have the targets `ids[:, 1:]`. A Hugging Face model shifts "
    "`labels` itself: pass it `labels=input_ids`."
)
NOT_SHIFTED = "Give inputs `ids[:, :-1]` and targets `ids[:, 1:]`."


# Of the examples that could be told apart so many are asked about at least, and so many have the targets of others.
TOLD, STRANGE = 3, 2


def settled_elsewhere(record: Record) -> Outcome | None:
    """What needs no shift of a text: scores of several places beside one target, examples with the targets of others."""
    return of_several_places(record) or of_another_example(record)


def of_several_places(record: Record) -> Outcome | None:
    """The scores were brought into the loss's shape by a view where axes had to be exchanged."""
    result = done_exam(record, "loss_input")
    values = result.values if result is not None else {"sites": ()}
    sites = [*values["sites"], *values.get("alignments", ())]
    mixed = [site for site in sites if site.get("mixed")]
    if result is None or not mixed:
        return None
    worst = max(mixed, key=lambda site: int(site["mixed"]))
    return targets_misaligned.finding(
        evidence(
            "targets that are compared with scores from several places of the last layer",
            worst["mixed"],
            0,
            step=result.step,
        ),
        evidence("targets", worst["rows"]),
        summary=(
            "The scores that a target is compared with come from several places: they were reshaped where two axes "
            "had to be exchanged"
        ),
        remedy=(
            "Exchange axes with `transpose` or `permute`; `view` and `reshape` only cut the same row of "
            "numbers at other places."
        ),
        line=worst["line"],
        since_step=0,
        grade="exact",
    )


def of_another_example(record: Record) -> Outcome | None:
    """Where no shift of a text settles it: the examples of a batch, whatever they are, and their targets."""
    shift = record.exam("shift")
    if shift is None or (shift.done and settled(shift.values)):
        return None
    left_open = targets_misaligned.without(record, "pairing")
    if left_open is not None:
        # What cannot be asked of examples is asked of tokens.
        return left_open if record.exam("pairing") is None else None
    result = wanted_exam(record, "pairing")
    asked = [loss for loss in result.values["losses"] if loss["told"] >= TOLD]
    for loss in asked:
        # At one distance: rows that follow each other, and each predicts the next.
        if loss["strange"] >= STRANGE and loss["offsets"] > 1:
            return targets_misaligned.finding(
                evidence(
                    "examples whose target is compared with the prediction for another example",
                    loss["strange"],
                    0,
                    step=result.step,
                ),
                evidence("examples looked at", loss["told"], step=result.step),
                summary=(
                    "Predictions and targets are in different orders: the target of an example "
                    "is compared with the prediction for another"
                ),
                remedy=(
                    "Bring predictions and targets to the loss in the same order: `repeat` on one "
                    "side and `repeat_interleave` on the other, `view` for a transpose, or a "
                    "permutation of one side alone change it."
                ),
                line=loss["line"],
                since_step=0,
                grade="exact",
            )
    if asked and not shift.done:
        return targets_misaligned.clear(
            "each prediction is compared with the target of its example"
        )
    return None


def settled(shift: Mapping[str, Any]) -> bool:
    """The tokens say how targets lie, or that all predictions are compared with all of them."""
    return bool(shift.get("outer")) or any(p["shift"] is not None for p in shift["pairs"])


@check(
    code="DAT001",
    slug="targets-misaligned",
    title="Targets are not the next tokens",
    wants=["shift"],
    at_once=settled_elsewhere,
    law=laws.UNSEEN,
    undecided="only part of the targets could be found in the input",
    explains=(
        "labels-unrelated",
        "overfitting",
        "causal-mask-leak",
        "attention-blind",
        *NOT_LEARNING,
    ),
    urgent=True,
    essential=True,
    signs=("loss-too-good",),
)
def targets_misaligned(record: Record) -> Outcome:
    """
    ## What it does
    Compares the targets at the loss with the tokens at the embedding, place by place, on one batch. A constant
    shift either fits at every place or it is not there. Next-token prediction is +1. The scores are asked as well:
    one that stands beside the target of place t must move when token t changes. Where a soft prompt or an image stands
    before the text, that tells where the scores of the text begin. Numbers must be compared with their own targets: shapes
    that broadcast compare all with all. Where nothing is shifted, inputs and targets of single examples are exchanged:
    the predictions that move must be those whose loss asks for that target. The scores of one target must all come from one
    place of the layer that made them.
    ## Why it matters
    With shift 0 the answer stands in the input and the model learns to copy; with +2 it learns to skip a token;
    with -1 to repeat the past. The loss looks fine and the generated text is garbage.
    ## How to fix
    Give inputs `ids[:, :-1]` and targets `ids[:, 1:]`, once. Hugging Face models shift `labels` themselves: pass
    `labels=input_ids` and do not shift before.
    ## When it stays silent
    A source that an encoder and a decoder copy. Masked language models, taggers, classifiers, copying and reversing
    tasks have no exact shift or are meant to have one. Where one loss of the step has +1, others with +2, +3 are heads
    that look further ahead. Targets that equal the inputs are right where the scores lag behind them: a start token put before the embeddings, an action that is
    predicted at the place of its state.
    """
    result = wanted_exam(record, "shift")
    for outer in result.values.get("outer", ()):
        return all_with_all(outer, result.step)
    if not result.values["pairs"]:
        return targets_misaligned.clear("each prediction is compared with its own target")
    pairs = [p for p in result.values["pairs"] if not p["contrastive"]]
    if (crossed := crossed_layout(record)) is not None:
        return crossed
    if any(p["shift"] == 1 for p in pairs):
        return (
            handed_over(record)
            or asked_twice(pairs, result.step)
            or late_scores(record)
            or targets_misaligned.clear("the targets are the next tokens at every position")
        )
    for pair in pairs:
        outcome = judge(record, pair, result.step) or row_by_row(record, pair, result.step)
        if outcome is not None:
            return outcome
    return targets_misaligned.clear(
        "no constant shift between inputs and targets, so this is another kind of task"
    )


def all_with_all(outer: dict[str, Any], step: int) -> Outcome:
    """(N, 1) less (N,) is (N, N): every prediction is drawn to the mean of all targets."""
    rows = int(outer["rows"])
    return targets_misaligned.finding(
        evidence("targets each prediction is compared with", rows, 1, step=step),
        summary=f"The loss compares each of {rows} predictions with the targets of all {rows}: their shapes are ({rows}, 1) and "
        f"({rows},)",
        remedy="Give predictions and targets the same shape: `prediction.squeeze(-1)` or `target.unsqueeze(-1)`.",
        line=outer["line"],
        since_step=0,
        grade="exact",
    )


def crossed_layout(record: Record) -> Outcome | None:
    """Targets are right, but each stands beside the scores of another place."""
    result = done_exam(record, "dependence")
    if result is None:
        return None
    pair = next((p for p in result.values["pairs"] if p.get("crossed")), None)
    if pair is None:
        return None
    return targets_misaligned.finding(
        evidence(
            "change of the logits compared with other rows' targets when one row changes",
            pair["other_rows"],
            0.0,
            noise=NOTHING,
            step=result.step,
        ),
        evidence("the same with batch and time axes of the logits swapped", 0.0, 0.0),
        summary=(
            "Logits and targets are flattened in different orders, one time-first and one "
            "batch-first, so each prediction is compared with the target of another "
            "position"
        ),
        remedy=(
            "Flatten both the same way: transpose the logits to (batch, time, classes) "
            "before `reshape(-1, classes)` and `targets.reshape(-1)`."
        ),
        line=pair["line"],
        since_step=0,
        grade="exact",
    )


def asked_twice(pairs: list[dict[str, Any]], step: int) -> Outcome | None:
    """Heads that look one, two, three tokens ahead, and one more that looks as far as another: it is one short."""
    asked = Counter(p["shift"] for p in pairs)
    ahead = sorted(shift for shift in asked if shift is not None)
    # Micro-batches repeat all of them.
    if ahead != list(range(1, len(ahead) + 1)) or len(ahead) < 2 or len(set(asked.values())) == 1:
        return None
    twice = max(ahead, key=lambda shift: asked[shift])
    return targets_misaligned.finding(
        evidence("losses of the step that ask for the same distance", asked[twice], 1, step=step),
        evidence("distances that are asked for", ", ".join(f"+{shift}" for shift in ahead)),
        grade="statistic",
        summary=(
            f"The heads of the step look {', '.join(f'+{shift}' for shift in ahead)} tokens ahead, and "
            f"{asked[twice]} of them +{twice}: each head must ask for a token of its own"
        ),
        remedy=(
            "The head with number k behind the model's own predicts token t + 1 + k: shift its targets by one more."
        ),
        line=pairs[0]["line"],
        since_step=0,
    )


def handed_over(record: Record) -> Outcome | None:
    """A second look-up gives each score the very token that it is asked for: a head that looks further ahead."""
    result = done_exam(record, "dependence")
    pairs = result.values["pairs"] if result is not None else []
    asked = {p.get("line") for p in pairs if p.get("shift") == 1}
    for pair in pairs:
        # An encoder is seen as a whole, whatever the place: only a stream that is read up to its own place hands over.
        stream = pair.get("future", 1.0) <= NOTHING and pair.get("lag") == 0
        if pair.get("line") in asked and pair.get("shift") == 0 and stream:
            assert result is not None
            return targets_misaligned.finding(
                evidence(
                    "change of a prediction when the token that is its target changes",
                    pair["one_token"],
                    0.0,
                    noise=NOTHING,
                    step=result.step,
                ),
                summary="A second embedding lookup feeds each prediction of this loss its own target",
                remedy=(
                    "Shift the targets of a look-ahead head as far as its inputs: inputs `ids[:, "
                    "1:]`, targets `ids[:, 2:]`."
                ),
                line=pair["line"],
                since_step=0,
                grade="exact",
            )
    return None


def late_scores(record: Record) -> Outcome | None:
    """Inputs and targets lie right, but the scores between them were cut at the wrong end."""
    result, skips = done_exam(record, "dependence"), done_exam(record, "residual")
    if result is None:
        return None
    pair = next((p for p in result.values["pairs"] if p.get("shift") == 1 and p.get("lag")), None)
    # Without skip paths a mask that hides the diagonal does the same: that is another fault.
    if pair is None or skips is None or not skips.values["attentions_bypassed"]:
        return None
    return targets_misaligned.finding(
        evidence(
            "positions from a token to the first logits it affects",
            pair["lag"],
            0,
            step=result.step,
        ),
        evidence("change of the logits at the token's own position", 0.0, "above 0"),
        summary=(
            f"The logits lag the targets by {pair['lag']} position(s): each has not seen the "
            "token just before its target, so it has to predict further ahead than meant"
        ),
        remedy=(
            "Slice the logits so that those made at token t meet target t + 1: a prefix in "
            "front of the tokens shifts all logits by its length."
        ),
        line=pair["line"],
        since_step=0,
        grade="exact",
    )


def judge(record: Record, pair: dict[str, Any], step: int) -> Outcome | None:
    shift, places = pair["shift"], pair["places"]
    if shift is None and places != "reversed":
        return None
    seen = evidence(
        "share of targets equal to the input at an offset of "
        + (f"{shift:+d}" if shift is not None else "reversed"),
        1.0 if pair["match"] is None else pair["match"],
        "1 at +1",
        step=step,
    )
    compared = evidence("positions compared", pair["compared"], step=step)
    found = partial(targets_misaligned.finding, seen, compared, line=pair["line"], since_step=0)
    if shift is not None and shift >= 2:
        twice = ": they were shifted twice" if shift == 2 else ""
        summary = f"The targets are the tokens {shift} positions ahead, not the next ones{twice}"
        return found(summary=summary, remedy=ONCE if shift == 2 else None, grade="exact")
    if shift is not None and shift < 0:
        if not is_text(record):
            return None
        return found(summary=f"The targets are past tokens ({shift} positions)", grade="exact")
    causal = sees_only_the_past(record)
    if causal is None:
        return targets_misaligned.not_judged(
            "the targets equal the inputs; it is not known whether the model sees them",
            wants="dependence",
        )
    if shift == 0 and causal:
        if not_seen_yet(record, pair):
            return targets_misaligned.clear("each prediction is made before its target is seen")
        return found(
            summary=(
                "The targets equal the inputs: the model is asked for the token it has just "
                "been given"
            ),
            remedy=NOT_SHIFTED,
            grade="exact",
        )
    if shift == 0:
        few = 2 * pair["valid"] < pair["total"]
        return found(
            summary="The targets equal the inputs at every position in the loss: nothing was masked",
            grade="statistic",
            status="likely" if few else "possible",
        )
    if causal:
        return found(
            summary="The targets are the inputs in reverse, but the model sees only the past",
            grade="statistic",
        )
    return None


def not_seen_yet(record: Record, pair: dict[str, Any]) -> bool:
    """Whether the score at a token's own place does not move with it, and a later one does."""
    result = record.exam("dependence")
    assert result is not None
    return any(
        p.get("input") == pair.get("input")
        and p.get("line") == pair["line"]
        and (p.get("lag") or 0) > 0
        for p in result.values["pairs"]
    )


def row_by_row(record: Record, pair: dict[str, Any], step: int) -> Outcome | None:
    """Every row fits exactly, but each at a distance of its own: padded on different sides, cut at different lengths."""
    found = pair.get("ragged")
    if not found:
        return None
    shifts = found["shifts"]
    # Repeating random signs after a pause of one's own is a task; saying what comes much later is none.
    if min(shifts) < 1 and not found.get("text", is_text(record)):
        return None
    return targets_misaligned.finding(
        evidence(
            "rows whose targets are not shifted by exactly one",
            sum(shift != 1 for shift in shifts),
            0,
            step=step,
        ),
        evidence("shift per row", f"{min(shifts):+d} to {max(shifts):+d}", "+1 in each"),
        evidence("positions compared", found["compared"], step=step),
        summary=(
            "Inputs and targets are padded on different sides or cut to different lengths: "
            f"each row is shifted by a different amount ({min(shifts):+d} to "
            f"{max(shifts):+d} positions)"
        ),
        remedy="Truncate and pad inputs and targets together, in one place.",
        line=pair["line"],
        since_step=0,
        grade="exact",
    )


def is_text(record: Record) -> bool:
    """Whether a token says something of the next: count models of one and two tokens differ."""
    one, two = record.get("ladder.unigram"), record.get("ladder.bigram")
    if one is None or two is None or not len(one) or not len(two):
        return True
    return one.tail(LATE).median() - two.tail(LATE).median() > TEXT_NATS


def sees_only_the_past(record: Record) -> bool | None:
    result = record.exam("dependence")
    if result is None:
        return None
    if not result.done:
        return False
    futures = [p["future"] for p in result.values["pairs"] if "future" in p]
    return bool(futures) and max(futures) <= NOTHING
