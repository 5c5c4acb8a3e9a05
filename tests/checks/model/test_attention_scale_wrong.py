from __future__ import annotations

import math

import pytest

from traindoctor.checks.base import Clear, Finding, Outcome
from traindoctor.checks.model.attention_scale_wrong import attention_scale_wrong
from traindoctor.record import make_record


def judge(scale: float | None, std: float, length: int = 64, spread: float = 0.3) -> Outcome:
    factor = None if scale is None else scale / math.sqrt(length)
    row = {"scale": scale, "factor": factor, "std": std, "length": length, "entropy": 0.4}
    row |= {"module": "attn", "line": "train.py:9", "spread": spread}
    return attention_scale_wrong(
        make_record(exams={"attention_scores": {"attentions": [row], "step": 0}})
    )


@pytest.mark.parametrize(("scale", "std"), [(64.0, 21.0), (8.0, 8.0), (0.002, 0.001)])
def test_fires_when_factor_and_spread_are_both_out(scale: float, std: float) -> None:
    assert isinstance(judge(scale, std), Finding)


@pytest.mark.parametrize(
    ("scale", "std"),
    [
        (1.0, 0.9),
        (1.0, 60.0),  # weights that start too large
        (8.0, 1.0),  # T5 leaves the factor to its initialisation
        (0.125, 0.02),  # muP divides by d
        (1.0, 0.004),  # small weights
        (None, 30.0),  # a learned temperature
    ],
)
def test_silent_on_look_alikes(scale: float | None, std: float) -> None:
    assert isinstance(judge(scale, std), Clear)


def test_a_factor_above_one_is_wrong_by_construction_unless_it_is_a_temperature() -> None:
    assert isinstance(judge(64.0, 1.6), Finding)  # multiplied by sqrt(d) instead of divided
    assert isinstance(
        judge(80.0, 1.6, spread=0.0), Clear
    )  # cosine attention with a temperature of 10


@pytest.mark.parametrize(
    ("reach", "keys", "sick"),
    [(1 / 12, 64, True), (12.0, 64, False), (1.0, 4, False), (None, 64, False)],
)
def test_cosine_scores_that_cannot_choose_a_key(reach: float | None, keys: int, sick: bool) -> None:
    row = {"scale": 1.0, "factor": 0.2, "std": 0.5, "length": 16, "entropy": 0.9, "spread": 0.0}
    row |= {"module": "attn", "line": "train.py:9", "reach": reach, "keys": keys}
    outcome = attention_scale_wrong(
        make_record(exams={"attention_scores": {"attentions": [row], "step": 0}})
    )
    assert isinstance(outcome, Finding if sick else Clear)


def cosine(reach: float, std: float, *, learned: bool) -> Outcome:
    row = {"scale": reach * 4.0, "factor": reach, "std": std, "length": 16, "entropy": 0.5}
    row |= {"spread": 0.0, "module": "attn", "line": None}
    row |= {"reach": reach, "keys": 64, "learned": learned}
    return attention_scale_wrong(
        make_record(exams={"attention_scores": {"attentions": [row], "step": 0}})
    )


def test_a_temperature_of_cosine_scores_is_never_too_sharp() -> None:
    assert isinstance(cosine(20.0, 5.0, learned=False), Clear)
    assert isinstance(cosine(100.0, 25.0, learned=True), Clear)
    # The same scale and spread of scores that nothing bounds.
    assert isinstance(judge(80.0, 5.0), Finding)


def test_a_flat_temperature_is_wrong_by_construction_only_where_it_is_fixed() -> None:
    assert isinstance(cosine(0.1, 0.02, learned=False), Finding)
    assert isinstance(cosine(0.1, 0.02, learned=True), Clear)
