from __future__ import annotations

from typing import Any

from traindoctor.checks.base import Clear, Finding, NotJudged, Outcome
from traindoctor.checks.model.model_too_small import model_too_small
from traindoctor.record import make_record


def judge(
    loss: list[float],
    rung: float = 2.0,
    reference: dict[str, Any] | None = None,
    by_heart: float | None = None,
) -> Outcome:
    series = {
        "loss.token": loss,
        "ladder.unigram": [3.1] * len(loss),
        "ladder.bigram": [rung] * len(loss),
    }
    exams = {} if reference is None else {"reference_model": reference}
    if by_heart is not None:
        exams["overfit_batch"] = {"start": 3.0, "end": by_heart, "floor": 0.5}
    return model_too_small(make_record(series, exams=exams))


REFERENCE = {"held_out": 1.8, "noise": 0.02, "parameters": 100_000, "own_parameters": 900}
POOR = [3.0] * 100


def test_asks_a_reference_then_for_one_batch_by_heart_and_fires_when_both_speak_for_it() -> None:
    asked = judge(POOR)
    assert isinstance(asked, NotJudged)
    assert asked.wants == "reference_model"
    then = judge(POOR, reference=REFERENCE)
    assert isinstance(then, NotJudged)
    assert then.wants == "overfit_batch"
    found = judge(POOR, reference=REFERENCE, by_heart=2.8)
    assert isinstance(found, Finding)
    assert found.status == "likely"


def test_silent_when_it_is_good_has_room_or_when_size_is_not_it() -> None:
    assert isinstance(judge([1.9] * 100), Clear)
    assert isinstance(judge(POOR, reference=REFERENCE, by_heart=1.2), Clear)
    assert isinstance(judge(POOR, reference=REFERENCE | {"held_out": 2.95}), Clear)
    assert isinstance(judge(POOR, reference=REFERENCE | {"own_parameters": 90_000}), Clear)


def test_counts_of_pairs_that_say_nothing_are_no_measure_of_a_task() -> None:
    """Symbols drawn at random: counts of two are as poor as counts of one."""
    asked = judge([3.05] * 100, rung=3.09)
    assert isinstance(asked, NotJudged)
    assert isinstance(judge([0.2] * 100, rung=3.09), Clear)
