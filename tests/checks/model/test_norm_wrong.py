from __future__ import annotations

from typing import Any

import pytest

from traindoctor.checks.base import Clear, Finding, Outcome
from traindoctor.checks.model.norm_wrong import norm_wrong
from traindoctor.record import make_record


def norm(op: str, *axes: str) -> dict[str, Any]:
    return {"op": op, "axes": sorted(axes), "shape": [8, 24, 32], "module": "n", "line": None}


def judge(*norms: dict[str, Any], mixing: float | None = None, **values: Any) -> Outcome:
    usual = {"norms": list(norms), "rms_by_hand": 0, "attentions": 2, "growth": 1.5} | values
    exams: dict[str, Any] = {"normalisation": usual}
    if mixing is not None:
        pair = {
            "expects_causal": True,
            "mixing_op": "batch_norm",
            "other_rows": mixing,
            "future": 0.1,
        }
        exams["dependence"] = {"pairs": [pair]}
    return norm_wrong(make_record(exams=exams))


@pytest.mark.parametrize("axes", [("time",), ("batch",), ("batch", "feature")])
def test_fires_on_statistics_over_the_wrong_axis(axes: tuple[str, ...]) -> None:
    found = judge(norm("layer_norm", *axes))
    assert isinstance(found, Finding)
    assert found.status == "confirmed"


def test_fires_on_batch_norm_in_a_next_token_model() -> None:
    assert isinstance(judge(norm("batch_norm", "batch", "time"), mixing=0.1), Finding)


def test_statistics_over_time_in_a_next_token_model_are_a_leak() -> None:
    assert isinstance(judge(norm("layer_norm", "time"), mixing=0.0), Clear)


def test_statistics_over_time_in_a_model_of_signals_count_where_the_run_is_stuck() -> None:
    values = {"norms": [norm("var_mean", "time") | {"signal": True}], "rms_by_hand": 0}
    exams = {"normalisation": values | {"attentions": 2, "growth": None}}
    stuck = norm_wrong(make_record({"loss.root": [2.5, 2.4] * 20}, exams=exams))
    assert isinstance(stuck, Finding)
    assert stuck.status == "likely"
    learning = {"loss.root": [2.5 - 0.05 * k for k in range(40)]}
    assert isinstance(norm_wrong(make_record(learning, exams=exams)), Clear)


def test_fires_on_a_deep_stack_that_grows() -> None:
    assert isinstance(judge(attentions=6, growth=40.0), Finding)


def test_silent_on_sound_and_intended_ones() -> None:
    assert isinstance(judge(norm("layer_norm", "feature")), Clear)
    assert isinstance(
        judge(norm("batch_norm", "batch", "time")), Clear
    )  # an encoder with BatchNorm
    assert isinstance(judge(attentions=6, growth=2.0), Clear)  # bounded without normalisation
    assert isinstance(judge(attentions=6, growth=40.0, rms_by_hand=13), Clear)
