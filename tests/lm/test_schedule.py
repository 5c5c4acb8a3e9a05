"""The learning rate rises, then falls to its floor."""

from __future__ import annotations

import pytest

from traindoctor.lm.config import TrainConfig
from traindoctor.lm.schedule import learning_rate


def rates(config: TrainConfig, steps: int) -> list[float]:
    return [learning_rate(config, s, s / steps, steps) for s in range(steps)]


def test_warm_up_then_cosine_to_the_floor() -> None:
    found = rates(TrainConfig(lr=1.0, lr_floor=0.1, warmup=10, steps=200), 200)
    assert found[0] == pytest.approx(1 / 11)
    assert found[:11] == sorted(found[:11])
    assert found[10] == max(found) == pytest.approx(1.0)
    assert found[10:] == sorted(found[10:], reverse=True)
    assert found[105] == pytest.approx(0.55, abs=0.01)
    assert found[-1] == pytest.approx(0.1, abs=0.001)


def test_a_short_run_warms_up_for_a_tenth_at_most() -> None:
    found = rates(TrainConfig(lr=1.0, warmup=1000), 50)
    assert found.index(max(found)) == 5


def test_by_the_clock_the_share_of_time_counts() -> None:
    config = TrainConfig(lr=1.0, lr_floor=0.0, warmup=0, minutes=1)
    assert learning_rate(config, 5, 0.0, 0) == 1.0
    assert learning_rate(config, 50, 0.5, 0) == pytest.approx(0.5)
    assert learning_rate(config, 500, 1.0, 0) == pytest.approx(0.0)
