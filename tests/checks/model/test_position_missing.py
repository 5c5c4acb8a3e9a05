from __future__ import annotations

from typing import Any

import numpy as np

from traindoctor.checks.base import Clear, Finding, NotApplicable, NotJudged, Outcome
from traindoctor.checks.model.position_missing import position_missing
from traindoctor.record import ExamResult, Series, make_record

# One unit in the last place moves the scores by so much; other tokens by so much.
NOISE, REPLACED = 1e-6, 5.0


def plain_models(gain: float, learned: float) -> ExamResult:
    """What positions gain a plain model, and what it learned without them."""
    values = {"gain": gain, "noise": 0.01, "guessing": 3.0, "without": 3.0 - learned}
    return ExamResult("order_matters", 20, "done", values)


HELPS = plain_models(gain=0.6, learned=0.2)


def pair_of(gap: float, noise: float = NOISE, *, pooled: bool = False) -> dict[str, Any]:
    return {"gap": gap, "noise": noise, "replaced": REPLACED, "pooled": pooled, "line": None}


def judge(
    gap: float,
    noise: float = NOISE,
    *,
    step: int = 20,
    pooled: bool = False,
    loss: float = 2.1,
    plain: ExamResult | None = HELPS,
) -> Outcome:
    values = {"pairs": [pair_of(gap, noise, pooled=pooled)], "step": step}
    exams = [ExamResult("positions", step, "done", values), *([plain] if plain else [])]
    return position_missing(
        make_record({"loss.token": [loss] * 20, "ladder.unigram": [3.0] * 20}, exams=exams)
    )


def test_fires_when_order_never_arrives() -> None:
    found = judge(8e-7)
    assert isinstance(found, Finding)
    assert found.status == "confirmed"


def test_whether_a_set_is_meant_is_asked_of_plain_models() -> None:
    asked = judge(8e-7, plain=None)
    assert isinstance(asked, NotJudged)
    assert asked.wants == "order_matters"
    assert isinstance(judge(8e-7, plain=plain_models(gain=0.02, learned=0.5)), Clear)


def test_where_plain_models_cannot_tell_it_is_likely() -> None:
    refused = ExamResult("order_matters", 20, "refused", {}, "only 3 batches were kept")
    for undecided in (plain_models(gain=0.02, learned=0.02), refused):
        found = judge(8e-7, plain=undecided)
        assert isinstance(found, Finding)
        assert found.status == "likely"
        assert "a set of tokens" in (found.undecided or "")


def test_silent_when_order_arrives_or_is_not_needed() -> None:
    assert isinstance(judge(0.02), Clear)
    assert isinstance(judge(8e-7, loss=0.1), Clear)


def test_a_change_of_the_size_of_rounding_is_no_order() -> None:
    assert isinstance(judge(1.2e-5, noise=1.7e-5), Finding)  # a deep stack in float32
    assert isinstance(judge(0.02, noise=0.02), Finding)  # bfloat16
    assert isinstance(judge(0.11, noise=0.02), Clear)


def test_a_change_beyond_rounding_that_is_nothing_beside_other_tokens_rules_nothing_out() -> None:
    early, late = judge(1.2e-5, step=0), judge(1.2e-5)
    assert isinstance(early, NotJudged)
    assert early.wants == "positions"
    assert isinstance(late, NotJudged)
    assert late.wants is None


def test_position_tables_that_start_at_zero_are_asked_again() -> None:
    early = judge(8e-7, step=0)
    assert isinstance(early, NotJudged)
    assert early.wants == "positions"


def test_a_classifier_of_sets_is_at_most_possible() -> None:
    found = judge(8e-7, pooled=True)
    assert isinstance(found, Finding)
    assert found.status == "possible"


def test_next_token_models_are_not_asked() -> None:
    refused = ExamResult("positions", 0, "refused", {}, "a next-token model")
    assert isinstance(position_missing(make_record(exams=[refused])), NotJudged)


def stuck(gain: float | None) -> Outcome:
    """A classifier without order that stands on the entropy of its labels; `gain` of a plain model with order."""
    pairs = {"pairs": [pair_of(8e-7, pooled=True)], "step": 20}
    exams: dict[str, Any] = {"positions": pairs}
    if gain is not None:
        exams["reference_model"] = {"guessing": 1.4, "held_out": 1.4 - gain, "noise": 0.01}
    results = [ExamResult(name, 20, "done", values) for name, values in exams.items()]
    levels = {"loss.token": [1.4] * 40, "ladder.unigram": [1.39] * 40}
    return position_missing(make_record(levels, exams=results))


def test_a_classifier_that_learns_nothing_is_held_against_one_that_knows_the_order() -> None:
    asked = stuck(None)
    assert isinstance(asked, NotJudged)
    assert asked.wants == "reference_model"
    missing, meant = stuck(0.6), stuck(0.0)
    assert isinstance(missing, Finding)
    assert isinstance(meant, Finding)
    assert (missing.status, meant.status) == ("likely", "possible")


def test_a_next_token_model_cannot_have_it_whatever_is_added_to_its_places() -> None:
    """Its mask tells the order. Codes are asked about only where no rows of tokens were found."""
    exams = [
        ExamResult("positions", 0, "not-applicable", {}, "a next-token model"),
        ExamResult("place_codes", 0, "refused", {}, "no code is added"),
    ]
    assert isinstance(position_missing(make_record(exams=exams)), NotJudged)
    tokens = ExamResult("dependence", 0, "done", {"pairs": []}, "")
    assert isinstance(position_missing(make_record(exams=[*exams, tokens])), NotApplicable)


def test_the_level_of_a_second_stage_says_nothing_of_the_first() -> None:
    """A student that learns from a teacher has another loss than the teacher had."""
    positions = {"pairs": [pair_of(8e-7, pooled=True)], "step": 20}
    plain = {"guessing": 1.4, "held_out": 0.8, "noise": 0.01}
    levels = {"loss.token": [1.4] * 40, "ladder.unigram": [1.39] * 40}
    record = make_record(levels, exams={"positions": positions, "reference_model": plain})
    alone = position_missing(record)
    record._series["optim.objects"] = Series("optim.objects", np.array([0, 20]), np.array([1.0, 2]))
    staged = position_missing(record)
    assert isinstance(alone, Finding)
    assert isinstance(staged, Finding)
    assert (alone.status, staged.status) == ("likely", "possible")
