from __future__ import annotations

from traindoctor.checks.base import Clear, Finding, NotJudged, Outcome
from traindoctor.checks.generation.undertrained import undertrained
from traindoctor.record import make_record


def judge(loss: list[float], rung: float = 2.5, *, writes: bool = True) -> Outcome:
    facts = {"text.samples": [{"text": "xq zz"}]} if writes else {}
    series = {"loss.token": loss, "ladder.bigram": [rung] * len(loss)}
    return undertrained(make_record(series, facts=facts))


def test_fires_while_the_loss_falls_above_the_pairs() -> None:
    found = judge([4.0 - 0.01 * i for i in range(80)])
    assert isinstance(found, Finding)
    assert found.status == "likely"


def test_only_possible_as_near_to_the_pairs_as_the_margin() -> None:
    found = judge([4.0 - 0.01 * i for i in range(80)], rung=3.31)
    assert isinstance(found, Finding)
    assert found.status == "possible"


def test_silent_where_the_fall_is_within_the_noise() -> None:
    wave = [3.4 + (0.6 if i % 2 else -0.6) - 0.001 * i for i in range(80)]
    assert isinstance(judge(wave), Clear)


def test_silent_below_the_pairs_on_a_plateau_and_without_text() -> None:
    assert isinstance(judge([2.0] * 80), Clear)
    assert isinstance(judge([3.2] * 80), Clear)
    assert isinstance(judge([3.2] * 80, writes=False), NotJudged)
