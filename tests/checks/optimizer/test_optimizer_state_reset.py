from __future__ import annotations

from traindoctor.checks.base import Clear, Finding
from traindoctor.checks.optimizer.optimizer_state_reset import optimizer_state_reset
from traindoctor.record import make_record


def every(interval: int, steps: int = 300) -> list[float]:
    return [float(k > 0 and k % interval == 0) for k in range(steps)]


def test_fires_on_a_state_that_is_lost_at_each_step_or_each_short_epoch() -> None:
    for interval in (1, 20):
        found = optimizer_state_reset(make_record({"optim.state_reset": every(interval)}))
        assert isinstance(found, Finding)
        assert found.since_step == interval


def test_silent_on_a_state_that_stays_and_on_one_restart() -> None:
    assert isinstance(optimizer_state_reset(make_record({"optim.state_reset": [0.0] * 50})), Clear)
    once = [0.0] * 50 + [1.0] + [0.0] * 50
    assert isinstance(optimizer_state_reset(make_record({"optim.state_reset": once})), Clear)


def test_silent_on_deliberate_restarts_far_apart() -> None:
    assert isinstance(
        optimizer_state_reset(make_record({"optim.state_reset": every(500, 4000)})), Clear
    )
