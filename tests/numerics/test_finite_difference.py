"""Quotients state their own error, and the error holds."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from traindoctor.numerics.finite_difference import analytic, derivative, directional_test


@settings(max_examples=60, deadline=None)
@given(st.floats(0.1, 3.0), st.floats(-2.0, 2.0), st.sampled_from([torch.float64, torch.float32]))
def test_the_stated_error_covers_the_real_one(
    rate: float, place: float, dtype: torch.dtype
) -> None:
    def phi(t: float) -> float:
        return float(torch.sin(torch.tensor(rate * (place + t), dtype=dtype)))

    found = derivative(phi, 1.0, dtype)
    assert abs(found.value - rate * math.cos(rate * place)) <= 8 * found.error + 1e-9


def test_a_kink_is_uncertain() -> None:
    found = derivative(abs, 1.0, torch.float64)
    assert not abs(found.value - 1.0) < 1e-6 or found.error > 0.1


def test_an_infinite_function_decides_nothing() -> None:
    assert derivative(lambda t: math.inf, 1.0, torch.float64).error == math.inf


@pytest.mark.parametrize("factor", [1.01, -1.0, 0.5])
def test_a_factor_is_read_off(factor: float) -> None:
    torch.manual_seed(0)
    x = [torch.randn(5, 4, dtype=torch.float64)]

    def function(x: torch.Tensor) -> torch.Tensor:
        return x.sin().prod(-1).sum()

    right = directional_test(function, x)
    assert right.outcome == "pass"
    wrong = directional_test(function, x, gradients=[factor * g for g in analytic(function, x)])
    assert wrong.outcome == "wrong"
    assert wrong.factor == pytest.approx(factor, rel=1e-6)


def test_a_block_set_to_zero_shows_in_random_directions() -> None:
    """A tile that a kernel forgets leaves the gradient nearly orthogonal to its error."""
    torch.manual_seed(0)
    x = [torch.randn(40, dtype=torch.float64)]

    def function(x: torch.Tensor) -> torch.Tensor:
        return x.logsumexp(0)

    gradient = analytic(function, x)[0]
    gradient[30:] = 0
    assert directional_test(function, x, gradients=[gradient]).outcome == "wrong"
