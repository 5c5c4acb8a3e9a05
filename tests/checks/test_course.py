"""How the loss went, where late steps were measured more rarely than early ones."""

from __future__ import annotations

import math

import numpy as np
import pytest

from traindoctor.checks.course import course_of, every_loss, window_means
from traindoctor.record import Record, Series

# 64 steps one by one, then every sixteenth: as the watch measures a long run.
STEPS = np.array([*range(64), *range(64, 260, 16)])


def series(name: str, values: list[float]) -> Series:
    return Series(name, STEPS[: len(values)], np.array(values))


def falling(step: int) -> float:
    return 2.8 * math.exp(-step / 40)


def test_the_end_is_the_last_steps_not_the_last_points() -> None:
    course = course_of(Record(series={"loss.root": series("loss.root", [*map(falling, STEPS)])}))
    assert course is not None
    assert course.solved
    assert course.last == pytest.approx(falling(240), rel=0.5)


def test_windows_of_steps_measured_one_by_one_are_their_means() -> None:
    values = np.random.default_rng(0).normal(size=200)
    means, width = window_means(Series("loss.root", np.arange(200), values))
    assert width == 25
    np.testing.assert_allclose(means, np.convolve(values, np.ones(25) / 25, mode="valid"))


def test_a_loss_of_backward_that_is_the_same_quantity_fills_the_gaps() -> None:
    token = Series("loss.token", STEPS[:64], np.array([falling(step) for step in STEPS[:64]]))
    root = series("loss.root", [0.25 * falling(step) for step in STEPS])
    filled = every_loss(Record(series={"loss.token": token, "loss.root": root}))
    assert filled is not None
    np.testing.assert_array_equal(filled.steps, STEPS)
    np.testing.assert_allclose(filled.values, [falling(step) for step in STEPS])


def test_a_loss_of_backward_that_is_another_quantity_does_not() -> None:
    token = Series("loss.token", STEPS[:64], np.array([falling(step) for step in STEPS[:64]]))
    root = series("loss.root", [falling(step) + 0.1 * (step % 3) for step in STEPS])
    kept = every_loss(Record(series={"loss.token": token, "loss.root": root}))
    assert kept is not None
    np.testing.assert_array_equal(kept.steps, STEPS[:64])
