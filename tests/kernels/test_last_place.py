"""The float32 loss of a row is within two units in the last place of the correctly rounded one."""

from __future__ import annotations

import importlib.util

import pytest
import torch
from torch import Tensor

from kernels.sure_rows import units_off
from traindoctor import cross_entropy

FAST = [2, 50, 1003, 2004, 5003]
FULL = [32000, 50257, 128256, 262144]
SIZES = [*FAST, *(pytest.param(V, marks=pytest.mark.slow) for V in FULL)]
on_gpu = pytest.mark.skipif(
    not torch.cuda.is_available() or importlib.util.find_spec("triton") is None,
    reason="needs a CUDA device and triton",
)
IMPLEMENTATIONS = ["torch", pytest.param("triton", marks=on_gpu)]
DTYPES = [torch.float32, torch.bfloat16, torch.float16]


def make(V: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Rows of every kind: flat, spread, sure of the target, sure of another class, offset."""
    generator = torch.Generator().manual_seed(V)
    num_rows = 40
    logits = torch.randn(num_rows, V, generator=generator)
    targets = torch.randint(V, (num_rows,), generator=generator)
    logits[8:16] *= 10
    at = targets.unsqueeze(1)
    logits[16:24] = logits[16:24].scatter_add(1, at[16:24], torch.full((8, 1), 30.0))
    logits[24:32] = logits[24:32].scatter_add(1, (at[24:32] + 1) % V, torch.full((8, 1), 30.0))
    logits[32:] += 300
    return logits.to(dtype), targets


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("V", SIZES)
@pytest.mark.parametrize("impl", IMPLEMENTATIONS)
def test_every_row(impl: str, V: int, dtype: torch.dtype) -> None:
    logits, targets = make(V, dtype)
    true = cross_entropy(logits.double(), targets, reduction="none")
    device = "cuda" if impl == "triton" else "cpu"
    losses = cross_entropy(logits.to(device), targets.to(device), reduction="none", impl=impl)
    assert losses.dtype == torch.float32
    assert units_off(losses.cpu(), true).max() <= 2


@pytest.mark.parametrize("V", [2, 50, 1003])
def test_the_truth_itself_against_fifty_digits(V: int) -> None:
    mpmath = pytest.importorskip("mpmath")
    logits, targets = make(V, torch.float32)
    losses = cross_entropy(logits.double(), targets, reduction="none")
    with mpmath.workdps(50):
        for row, target, loss in zip(logits.tolist(), targets.tolist(), losses.tolist()):
            x_t = mpmath.mpf(row[target])
            others = (mpmath.exp(mpmath.mpf(x) - x_t) for j, x in enumerate(row) if j != target)
            exact = mpmath.log1p(mpmath.fsum(others))
            assert abs(mpmath.mpf(loss) - exact) <= 1e-14 * exact
