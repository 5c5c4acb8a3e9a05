from __future__ import annotations

from typing import Any

import pytest

from traindoctor.checks.base import Clear, Finding, NotApplicable, NotJudged, Outcome
from traindoctor.checks.data.targets_misaligned import targets_misaligned
from traindoctor.record import ExamResult, make_record


def pair(**values: Any) -> dict[str, Any]:
    usual = {"shift": None, "places": None, "match": 1.0, "compared": 200, "contrastive": False}
    return usual | {"valid": 100, "total": 100, "line": "train.py:9"} | values


def judge(*pairs: dict[str, Any], future: float | None = None, text: bool = True) -> Outcome:
    exams: dict[str, Any] = {"shift": {"pairs": list(pairs)}, "pairing": {"losses": []}}
    if future is not None:
        exams["dependence"] = {"pairs": [{"future": future}]}
    levels = {"ladder.unigram": [3.0] * 10, "ladder.bigram": [2.4 if text else 3.0] * 10}
    return targets_misaligned(make_record(levels, exams=exams))


@pytest.mark.parametrize("shift", [2, 3, -1])
def test_fires_on_a_shift_that_is_not_one(shift: int) -> None:
    found = judge(pair(shift=shift))
    assert isinstance(found, Finding)
    assert (found.status, found.line) == ("confirmed", "train.py:9")


def test_targets_equal_to_inputs_need_to_know_whether_the_model_is_causal() -> None:
    unknown = judge(pair(shift=0))
    assert isinstance(unknown, NotJudged)
    assert unknown.wants == "dependence"
    causal = judge(pair(shift=0), future=0.0)
    assert isinstance(causal, Finding)
    assert causal.status == "confirmed"
    both_ways = judge(pair(shift=0), future=0.7)
    assert isinstance(both_ways, Finding)
    assert both_ways.status == "possible"
    unmasked = judge(pair(shift=0, valid=15), future=0.7)
    assert isinstance(unmasked, Finding)
    assert unmasked.status == "likely"


def test_silent_on_next_tokens_and_on_heads_that_look_further_ahead() -> None:
    assert isinstance(judge(pair(shift=1)), Clear)
    assert isinstance(judge(pair(shift=2), pair(shift=1)), Clear)


def test_one_of_several_heads_that_asks_for_what_another_is_asked_for() -> None:
    found = judge(*(pair(shift=shift) for shift in (1, 1, 2, 3)))
    assert isinstance(found, Finding)
    assert (found.status, "2 of them +1" in found.summary) == ("likely", True)
    # Micro-batches repeat all of them; layers that are supervised on the way ask for one distance.
    for shifts in ((1, 2, 3, 1, 2, 3), (1, 1, 1), (1, 3, 3)):
        assert isinstance(judge(*(pair(shift=shift) for shift in shifts)), Clear)


def test_silent_on_masked_models_copies_and_contrastive_losses() -> None:
    assert isinstance(judge(pair()), Clear)
    assert isinstance(judge(pair(places="permuted")), Clear)
    assert isinstance(judge(pair(places="reversed"), future=0.7), Clear)
    assert isinstance(judge(pair(shift=0, contrastive=True)), Clear)


def test_a_task_of_repeating_random_signs_is_no_text() -> None:
    assert isinstance(judge(pair(shift=-1), text=False), Clear)


def test_reversed_targets_in_a_causal_model_cannot_be_meant() -> None:
    assert isinstance(judge(pair(places="reversed"), future=0.0), Finding)


def test_scores_and_targets_flattened_in_different_orders() -> None:
    crossed = {"crossed": True, "other_rows": 4.9, "line": "train.py:30"}
    exams = {"shift": {"pairs": [pair(shift=1)]}, "dependence": {"pairs": [crossed]}}
    found = targets_misaligned(make_record(exams=exams))
    assert isinstance(found, Finding)
    assert (found.status, found.line) == ("confirmed", "train.py:30")
    assert "reshape" in found.remedy


def late(lag: int, *, skips: int = 2) -> Outcome:
    exams = {
        "shift": {"pairs": [pair(shift=1)]},
        "dependence": {"pairs": [{"shift": 1, "lag": lag, "line": "train.py:30"}]},
        "residual": {"attentions_bypassed": skips},
    }
    return targets_misaligned(make_record(exams=exams))


def test_scores_that_have_not_seen_the_token_before_their_target_are_late() -> None:
    found = late(1)
    assert isinstance(found, Finding)
    assert "lag the targets" in found.summary
    assert isinstance(late(0), Clear)
    assert isinstance(late(1, skips=0), Clear), "without skip paths a hidden diagonal does the same"


def test_rows_with_shifts_of_their_own_are_padded_on_different_sides() -> None:
    rows = {"shifts": [1, -3, -8, 0], "compared": 90}
    found = judge(pair(ragged=rows))
    assert isinstance(found, Finding)
    assert "different sides" in found.summary
    assert isinstance(judge(pair(ragged=rows), text=False), Clear)
    # Targets that lie elsewhere do not show what the inputs are: those are asked themselves.
    assert isinstance(judge(pair(ragged=rows | {"text": True}), text=False), Finding)
    ahead = {"shifts": [1, 39, 6], "compared": 90}
    assert isinstance(judge(pair(ragged=ahead), text=False), Finding)


@pytest.mark.parametrize(
    ("future", "lag", "fires"),
    [
        (0.0, 0, True),
        (0.6, 0, False),  # an encoder: a source that is copied
        (0.0, 1, False),  # each score is made before it is given the token
    ],
)
def test_a_second_look_up_that_hands_the_target_over(future: float, lag: int, fires: bool) -> None:
    stream = {"line": "train.py:9", "one_token": 2.4}
    first = stream | {"shift": 1, "future": 0.0, "lag": 0}
    second = stream | {"shift": 0, "future": future, "lag": lag}
    exams = {
        "shift": {"pairs": [pair(shift=1), pair(shift=0)]},
        "dependence": {"pairs": [first, second]},
    }
    outcome = targets_misaligned(make_record({"ladder.unigram": [3.0] * 10}, exams=exams))
    assert isinstance(outcome, Finding) == fires
    if isinstance(outcome, Finding):
        assert (outcome.status, outcome.line) == ("confirmed", "train.py:9")


def examples(
    told: int, strange: int, offsets: int, *, shift: dict[str, Any] | None = None
) -> Outcome:
    """Examples of a batch of numbers (or of tokens, where a shift was looked for)."""
    no_tokens = ExamResult("shift", 0, "not-applicable", {}, "the model takes no tokens")
    looked = no_tokens if shift is None else ExamResult("shift", 0, "done", shift)
    losses = [{"line": "train.py:9", "told": told, "strange": strange, "offsets": offsets}]
    pairing = ExamResult("pairing", 0, "done", {"losses": losses})
    return targets_misaligned(make_record(exams=[looked, pairing]))


def test_targets_in_another_order_than_the_predictions() -> None:
    found = examples(4, 3, 4)
    assert isinstance(found, Finding)
    assert (found.status, found.line) == ("confirmed", "train.py:9")
    assert "another" in found.summary
    assert isinstance(examples(4, 0, 1), Clear)
    assert isinstance(examples(4, 3, 4, shift={"pairs": [pair()]}), Finding)


def test_rows_that_predict_the_next_row_are_not_accused() -> None:
    assert isinstance(examples(4, 4, 1), Clear)


def test_few_examples_tell_nothing() -> None:
    assert isinstance(examples(2, 2, 2), NotApplicable)


def test_where_a_shift_is_known_examples_are_not_asked() -> None:
    assert isinstance(examples(4, 3, 4, shift={"pairs": [pair(shift=1)]}), Clear)


def test_examples_are_asked_about_where_there_are_no_tokens() -> None:
    no_tokens = ExamResult("shift", 0, "not-applicable", {}, "the model takes no tokens")
    open_ = targets_misaligned(make_record(exams=[no_tokens]))
    assert isinstance(open_, NotJudged)
    assert open_.wants == "pairing"
    refused = ExamResult("pairing", 0, "refused", {}, "it cannot be repeated")
    assert isinstance(targets_misaligned(make_record(exams=[no_tokens, refused])), NotApplicable)
