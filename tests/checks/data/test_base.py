from __future__ import annotations

import pytest

from traindoctor.checks.data.base import share_of_variance
from traindoctor.record import Record, make_record

FALLING = [2.0] * 100 + [0.5] * 60


def regression(points: int, root: list[float]) -> Record:
    """The error was measured at the first steps only, as on a busy machine."""
    series = {
        "loss.squared": FALLING[:points],
        "target.variance": [1.0] * points,
        "loss.root": root,
    }
    return make_record(series)


def test_a_loss_that_is_the_error_tells_it_at_every_step() -> None:
    halved = [error / 2 for error in FALLING]
    assert share_of_variance(regression(12, halved)) == pytest.approx(0.5)
    assert share_of_variance(regression(12, halved), 80) == pytest.approx((20 * 2 + 60 * 0.5) / 80)


def test_a_loss_with_a_second_term_does_not() -> None:
    mixed = [error + 0.1 * (step % 7) for step, error in enumerate(FALLING)]
    assert share_of_variance(regression(12, mixed)) is None
    assert share_of_variance(regression(160, mixed)) == pytest.approx(0.5)


def test_too_few_points_tell_nothing() -> None:
    assert share_of_variance(regression(5, FALLING)) is None
    assert share_of_variance(make_record({"loss.root": FALLING})) is None
