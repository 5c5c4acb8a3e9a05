from __future__ import annotations

import numpy as np
import pytest

from traindoctor.checks.base import Clear, Finding, NotJudged
from traindoctor.checks.generalisation.overfitting import overfitting
from traindoctor.record import Record, Series


def record(train, held_out, every: int = 20) -> Record:
    noise = np.random.default_rng(0).normal(0, 0.05, len(train))
    steps = np.arange(len(train))
    at = steps[every - 1 :: every][: len(held_out)]
    return Record(
        series={
            "loss.token": Series("loss.token", steps, np.asarray(train) + noise),
            "loss.eval": Series("loss.eval", at, np.asarray(held_out, dtype=float)),
        }
    )


def falling(steps: int = 300, to: float = 0.4) -> np.ndarray:
    return np.linspace(4.7, to, steps)


def test_fires_when_held_out_turns_while_training_goes_on() -> None:
    turned = [3.5, 2.8, 2.5, 2.4, 2.5, 2.8, 3.2, 3.7, 4.2, 4.8, 5.2, 5.5]
    found = overfitting(record(falling(), turned))
    assert isinstance(found, Finding)
    assert found.since_step == 79
    assert found.status == "likely"
    assert found.undecided


@pytest.mark.parametrize(("factor", "outcome"), [(1.0, Finding), (8.0, NotJudged)])
def test_where_targets_were_seen_rarely_the_loss_of_backward_serves_if_it_is_the_same(
    factor: float, outcome: type
) -> None:
    whole = record(falling(), [3.5, 2.8, 2.5, 2.4, 2.5, 2.8, 3.2, 3.7, 4.2, 4.8, 5.2, 5.5])
    tokens = whole["loss.token"]
    some = tokens.take(np.arange(300) % 30 == 0)
    root = Series("loss.root", tokens.steps, factor * tokens.values)
    series = {"loss.eval": whole["loss.eval"], "loss.token": some, "loss.root": root}
    assert isinstance(overfitting(Record(series=series)), outcome)


def test_silent_while_both_fall() -> None:
    assert isinstance(overfitting(record(falling(), np.linspace(4.6, 0.9, 12))), Clear)


def test_silent_on_scatter_about_a_plateau() -> None:
    scatter = 2.4 + np.random.default_rng(1).normal(0, 0.03, 14)
    assert isinstance(overfitting(record(falling(to=2.2), scatter)), Clear)


def test_silent_when_both_rise() -> None:
    up = np.concatenate([np.linspace(4, 2, 100), np.linspace(2, 5, 200)])
    held = [3.4, 2.9, 2.4, 2.1, 2.0, 2.3, 2.7, 3.0, 3.4, 3.8, 4.2, 4.6]
    assert isinstance(overfitting(record(up, held)), Clear)


def test_not_judged_on_too_few_evaluations() -> None:
    assert isinstance(overfitting(record(falling(), [3.0, 2.0, 3.0])), NotJudged)
