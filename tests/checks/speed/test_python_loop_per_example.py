from __future__ import annotations

import pytest

from traindoctor.checks.base import Clear, Finding, NotJudged
from traindoctor.checks.speed.python_loop_per_example import python_loop_per_example
from traindoctor.record import ExamResult, Record, make_record


def record_of(calls: int, batch: int, gain: float | None = None) -> Record:
    exams = (
        []
        if gain is None
        else [ExamResult("batched_forward", 3, "done", {"gain": gain, "noise": 0.1})]
    )
    return make_record({"forward.calls": [calls] * 10, "forward.batch": [batch] * 10}, exams=exams)


def test_asks_for_the_timing_first() -> None:
    outcome = python_loop_per_example(record_of(12, 1))
    assert isinstance(outcome, NotJudged)
    assert outcome.wants == "batched_forward"


def test_named_when_a_batch_is_much_faster() -> None:
    assert isinstance(python_loop_per_example(record_of(12, 1, gain=6.0)), Finding)


def test_silent_when_it_costs_little() -> None:
    assert isinstance(python_loop_per_example(record_of(12, 1, gain=1.6)), Clear)


def test_silent_while_accumulating() -> None:
    assert isinstance(python_loop_per_example(record_of(8, 16)), Clear)


def test_silent_on_a_few_calls() -> None:
    assert isinstance(python_loop_per_example(record_of(2, 1)), Clear)


def test_examples_that_cannot_be_timed_are_not_judged() -> None:
    refused = ExamResult("batched_forward", 3, "refused", {}, "the model is too large to be copied")
    record = make_record({"forward.calls": [12] * 10, "forward.batch": [1] * 10}, exams=[refused])
    assert isinstance(python_loop_per_example(record), NotJudged)


def test_a_loop_inside_the_model_counts() -> None:
    """The model is given a list and calls its encoder once per example."""
    timed = ExamResult("batched_forward", 3, "done", {"gain": 8.0, "noise": 0.1})
    facts = {"forward.inner_loop": 24}
    record = make_record({"forward.calls": [1] * 10}, exams=[timed], facts=facts)
    found = python_loop_per_example(record)
    assert isinstance(found, Finding)
    assert "24 times" in found.summary
    assert isinstance(python_loop_per_example(make_record({"forward.calls": [1] * 10})), Clear)


@pytest.mark.parametrize(
    ("series", "by"),
    [
        (
            {"forward.calls": [1.0] * 20, "forward.batch": [48.0] * 20},
            "1 forward pass per step, 48",
        ),
        ({"forward.calls": [2.0] * 20, "forward.batch": [64.0] * 20}, "2 forward passes per step"),
        ({"forward.calls": [0.0] * 20}, "0 forward passes per step"),
    ],
)
def test_what_cleared_it_is_said_in_numbers_that_are_known(series: dict, by: str) -> None:
    outcome = python_loop_per_example(make_record(series))
    assert isinstance(outcome, Clear)
    assert outcome.by.startswith(by)
    assert "nan" not in outcome.by
