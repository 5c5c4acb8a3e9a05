from __future__ import annotations

from typing import Any

from traindoctor.checks.base import Clear, Finding, NotJudged, Outcome
from traindoctor.checks.model.model_too_small import model_too_small
from traindoctor.record import make_record


def judge(loss: list[float], rung: float = 2.0, reference: dict[str, Any] | None = None) -> Outcome:
    series = {"loss.token": loss, "ladder.bigram": [rung] * len(loss)}
    exams = {} if reference is None else {"reference_model": reference}
    return model_too_small(make_record(series, exams=exams))


REFERENCE = {"held_out": 1.8, "noise": 0.02, "parameters": 100_000, "own_parameters": 900}


def test_asks_for_a_reference_on_a_plateau_and_fires_when_it_does_better() -> None:
    plateau = [3.0] * 100
    asked = judge(plateau)
    assert isinstance(asked, NotJudged)
    assert asked.wants == "reference_model"
    assert isinstance(judge(plateau, reference=REFERENCE), Finding)


def test_silent_while_it_falls_when_it_is_good_and_when_size_is_not_it() -> None:
    assert isinstance(judge([4.0 - 0.02 * i for i in range(100)]), Clear)
    assert isinstance(judge([1.9] * 100), Clear)
    assert isinstance(judge([3.0] * 100, reference=REFERENCE | {"held_out": 2.95}), Clear)
    assert isinstance(judge([3.0] * 100, reference=REFERENCE | {"own_parameters": 90_000}), Clear)
