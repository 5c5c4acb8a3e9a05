from __future__ import annotations

from typing import Any

import pytest

from traindoctor.checks.base import Clear, Finding, Outcome
from traindoctor.checks.data.padding_in_loss import padding_in_loss
from traindoctor.record import make_record


def judge(**values: Any) -> Outcome:
    usual = {"counted": 0.68, "rows": 1.0, "token": 0, "line": "train.py:9"}
    usual |= {"nll_padding": 0.01, "nll_elsewhere": 2.8, "lengths_vary": True}
    return padding_in_loss(make_record(exams={"padding": {"pairs": [usual | values]}}))


def test_fires_when_most_counted_targets_are_padding() -> None:
    found = judge()
    assert isinstance(found, Finding)
    assert found.status == "confirmed"
    assert "68%" in found.summary


@pytest.mark.parametrize(
    "values",
    [
        {"counted": 0.0},  # ignore_index, weights or selection
        {"counted": 0.08, "rows": 0.2},  # blanks at the end of a line
        {"lengths_vary": False},  # a task with a fixed tail
    ],
)
def test_silent_on_look_alikes(values: dict[str, Any]) -> None:
    assert isinstance(judge(**values), Clear)


def test_tails_of_one_length_are_padding_where_the_model_treats_them_so() -> None:
    assert isinstance(judge(lengths_vary=False, known_as_padding=True), Finding)
