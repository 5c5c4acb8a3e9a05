"""Numbers as a person says them."""

from __future__ import annotations

import math

import pytest

from traindoctor.checks.base import Evidence, NotJudged
from traindoctor.report.words import by_reason, number, proof


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (613.8, "614"),
        (3.14159, "3.14"),
        (0.00001234, "1.23e-5"),
        (9.537e-07, "9.54e-7"),
        (66612.4, "66612"),
        (384.0, "384"),
        (12800, "12800"),
        (1.234e12, "1.23e12"),
        (-0.0001, "-0.0001"),
        (math.inf, "inf"),
        (math.nan, "nan"),
        ("63 of 63", "63 of 63"),
        (None, "-"),
    ],
)
def test_three_digits_that_matter(value: float | str | None, said: str) -> None:
    assert number(value) == said


@pytest.mark.parametrize(
    ("item", "said"),
    [
        (Evidence("error", 383.0, 0.0, 9.537e-07, 2), "error: 383 (expected 0 ± 1e-6) at step 2"),
        (Evidence("error", 383.0, 0.0, 2.683e-16), "error: 383 (expected 0)"),
        (Evidence("loss", 5.361, 1.0, 0.8), "loss: 5.36 (expected 1 ± 0.8)"),
        (Evidence("seen", "63 of 63", "0 of 63", 1e-6), "seen: 63 of 63 (expected 0 of 63)"),
        (Evidence("keys", 11), "keys: 11"),
        (Evidence("labels are alike, z", 613.8, 0.0, 1.0), "labels are alike (z = 614)"),
    ],
)
def test_proof_in_a_line(item: Evidence, said: str) -> None:
    assert proof(item) == said


def test_what_found_no_time_is_one_group_whatever_it_waited_for() -> None:
    waiting = [
        NotJudged("lr-too-high", "not tested yet", why="no-time"),
        NotJudged("no-warmup", "a warm-up was not tried", why="no-time"),
        NotJudged("memory-leak", "not tested yet", wants="kept_tensors", why="not-made"),
        NotJudged("overfitting", "no validation loss was seen"),
    ]
    assert by_reason(waiting) == [
        ("no time was left", ["lr-too-high", "no-warmup"]),
        ("the run ended first", ["memory-leak"]),
        ("no validation loss was seen", ["overfitting"]),
    ]
