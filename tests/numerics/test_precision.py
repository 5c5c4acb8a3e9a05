"""The laboratory measures what is true of the arithmetic, and concludes only what it measured."""

from __future__ import annotations

import pytest

from traindoctor.numerics.precision import (
    Measurement,
    conclusions,
    measure,
    reference_error,
)
from traindoctor.numerics.quarrel import difference_test, quarrel, settle


@pytest.fixture(scope="module")
def measured() -> list[Measurement]:
    return measure(sizes=(34, 2004), seed=0)


def find(measured: list[Measurement], **wanted: object) -> list[Measurement]:
    return [m for m in measured if all(getattr(m, k) == v for k, v in wanted.items())]


def test_every_combination_is_measured_once(measured) -> None:
    keys = {(m.vocabulary, m.scale, m.dtype, m.method) for m in measured}
    assert len(keys) == len(measured) == 2 * 4 * 3 * 3


def test_plain_summation_of_34_float32_terms_is_off_by_less_than_a_millionth(measured) -> None:
    found = find(measured, vocabulary=34, dtype="float32", method="naive")
    assert all(m.denominator < 1e-6 for m in found)


def test_in_float32_the_way_of_adding_changes_nothing_anyone_could_notice(measured) -> None:
    judged = [c for c in conclusions(measured) if c.dtype == "float32"]
    assert len(judged) == 2
    assert not any(c.matters for c in judged)
    assert all("changes nothing" in c.text for c in judged)


def test_a_naive_bfloat16_sum_of_2004_terms_is_spoiled_and_a_tree_is_not(measured) -> None:
    (spoiled,) = find(measured, vocabulary=2004, dtype="bfloat16", method="naive", scale="1")
    (tree,) = find(measured, vocabulary=2004, dtype="bfloat16", method="pairwise", scale="1")
    assert spoiled.denominator > 0.3
    assert tree.denominator < 0.02
    (judged,) = [c for c in conclusions(measured) if (c.vocabulary, c.dtype) == (2004, "bfloat16")]
    assert judged.matters
    assert "pairwise" in judged.text


def test_a_conclusion_follows_from_the_numbers_given() -> None:
    def made(method: str, error: float) -> Measurement:
        return Measurement(
            vocabulary=7,
            scale="1",
            dtype="float16",
            method=method,
            denominator=error,
            loss=error,
            gradient=0.0,
        )

    def judge(naive: float, pairwise: float, compensated: float):
        errors = {"naive": naive, "pairwise": pairwise, "compensated": compensated}
        (found,) = conclusions([made(*pair) for pair in errors.items()])
        return found

    assert judge(0.5, 0.01, 0.4).matters
    assert "is not the trouble, float16 itself" in judge(0.5, 0.4, 0.5).text
    assert "changes nothing" in judge(1e-5, 1e-9, 1e-9).text
    assert judge(float("nan"), 1e-4, 1e-4).matters


def test_float64_is_a_fit_reference() -> None:
    pytest.importorskip("mpmath")
    error = reference_error()
    assert error is not None
    assert error < 1e-15


def test_the_quarrel_is_reproduced() -> None:
    disputed, right = settle(quarrel())
    assert disputed.dtype == "float32"
    assert disputed.step == 1e-5
    assert disputed.failures > disputed.checks / 2
    assert disputed.rounding > 0.5
    assert right.dtype == "float64"
    assert right.failures == 0
    assert right.mean_error < 1e-7


@pytest.mark.parametrize("seed", range(3))
def test_the_noise_formula_predicts_the_error(seed: int) -> None:
    """Where rounding rules, the measured error follows u |L| / h within an order of magnitude."""
    import torch

    for step in (1e-3, 1e-4):
        test = difference_test(torch.float32, step, seed)
        assert 0.1 < test.mean_error / test.rounding < 10
    for step in (1e-1, 1e-2):
        test = difference_test(torch.float64, step, seed)
        assert 0.1 < test.mean_error / test.curvature < 10
