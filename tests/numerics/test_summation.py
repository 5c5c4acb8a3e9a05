"""Naive, pairwise and compensated sums do in each dtype what their names say."""

from __future__ import annotations

from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from traindoctor.numerics.summation import METHODS, compensated, naive, pairwise, partial_sums

DTYPES = [torch.float64, torch.float32, torch.float16, torch.bfloat16]


@pytest.mark.parametrize("dtype", DTYPES)
def test_partial_sums_are_rounded_one_by_one(dtype: torch.dtype) -> None:
    values = torch.rand(3, 50, generator=torch.Generator().manual_seed(0)).to(dtype)
    total = values[:, 0]
    for k in range(1, 50):
        total = total + values[:, k]
        assert torch.equal(partial_sums(values)[:, k], total)


@pytest.mark.parametrize(("dtype", "stalls_at"), [(torch.bfloat16, 256.0), (torch.float16, 2048.0)])
def test_a_naive_sum_of_ones_stops_growing(dtype: torch.dtype, stalls_at: float) -> None:
    ones = torch.ones(1, 3000, dtype=dtype)
    assert naive(ones).item() == stalls_at
    assert abs(pairwise(ones).item() - 3000) <= 3000 * torch.finfo(dtype).eps


@given(
    st.lists(st.floats(0, 1, width=32), min_size=1, max_size=300),
    st.sampled_from([torch.float64, torch.float32]),
)
@settings(max_examples=60, deadline=None)
def test_a_compensated_sum_is_right_to_the_last_place(numbers, dtype) -> None:
    values = torch.tensor([numbers], dtype=dtype)
    exact = float(sum((Fraction(x) for x in values[0].tolist()), Fraction(0)))
    unit = torch.finfo(dtype).eps
    assert abs(compensated(values).item() - exact) <= unit * exact
    # pairwise: a unit for each level of the tree
    assert abs(pairwise(values).item() - exact) <= 10 * unit * exact


@pytest.mark.parametrize("dtype", DTYPES)
def test_results_keep_shape_and_dtype(dtype: torch.dtype) -> None:
    for add in METHODS.values():
        total = add(torch.ones(2, 1, dtype=dtype))
        assert total.dtype == dtype
        assert total.tolist() == [1.0, 1.0]
