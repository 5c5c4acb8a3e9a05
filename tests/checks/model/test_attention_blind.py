from __future__ import annotations

from typing import Any

from traindoctor.checks.base import Clear, Finding, NotJudged, Outcome
from traindoctor.checks.model.attention_blind import attention_blind
from traindoctor.record import ExamResult, make_record


def judge(step: int = 20, dead: float = 0.0, **values: Any) -> Outcome:
    usual = {"pooled": False, "finite": True, "other_rows": 0.0, "axis_is_known": True}
    usual |= {"other_places": 0.2, "one_token": 1.0, "line": "train.py:9"}
    exams = [
        ExamResult("dependence", step, "done", {"pairs": [usual | values], "attentions": 2}),
        ExamResult("dead_units", step, "done", {"layers": [{"dead": dead}]}),
    ]
    return attention_blind(make_record(exams=exams))


def test_fires_when_other_places_never_move() -> None:
    assert isinstance(judge(other_places=0.0), Finding)
    assert isinstance(judge(pooled=True, any_token=0.0), Finding)


def test_fires_at_once_when_examples_mix_instead() -> None:
    found = judge(step=0, other_places=0.0, other_rows=0.6)
    assert isinstance(found, Finding)
    assert "batch" in found.summary


def test_a_pooled_classifier_whose_attention_mixes_examples() -> None:
    mixing = {"pooled": True, "any_token": 0.5, "other_rows": 0.3}
    assert isinstance(judge(**mixing, mixing_op="multi_head_attention_forward"), Finding)
    assert isinstance(judge(**mixing, mixing_op="batch_norm"), Clear)


def test_silent_when_attention_passes_something() -> None:
    assert isinstance(judge(), Clear)
    assert isinstance(judge(other_rows=0.1), Clear)
    assert isinstance(judge(other_places=0.0, other_inputs=0.3), Clear)
    assert isinstance(judge(other_places=0.0, other_inputs=0.0), Finding)


def test_rows_that_may_be_places_are_not_judged() -> None:
    """A model that turns (batch, time) round: other places look like other examples."""
    turned = {"other_places": 0.0, "stirred": 0.0, "axis_is_known": False}
    assert isinstance(judge(**turned, other_rows=6.0), NotJudged)
    # A code that is added alike to every example tells which axis is time, to what mixes nothing else.
    assert isinstance(judge(**turned, other_rows=6.0, axis_has_codes=True), Finding)
    both = turned | {"other_places": 0.3, "mixing_op": "multi_head_attention_forward"}
    assert isinstance(judge(**both, other_rows=6.0, axis_has_codes=True), Clear)
    assert isinstance(judge(**turned, other_rows=0.0), Finding)


def test_zero_initialised_outputs_are_asked_again() -> None:
    early = judge(step=0, other_places=0.0)
    assert isinstance(early, NotJudged)
    assert early.wants == "dependence"


def test_dead_units_explain_it() -> None:
    assert isinstance(judge(pooled=True, any_token=0.0, dead=1.0), Clear)
