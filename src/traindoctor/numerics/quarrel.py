"""The quarrel over finite differences: a right gradient, tested with a wrong step, fails.

A central difference (L(x + h) - L(x - h)) / 2h is off by rounding, about u |L| / h (u: the dtype's
unit roundoff), and by curvature, about h^2. In float32 with h = 1e-5 and a loss of 4 the first alone
is 0.02, as large as the gradients of a softmax; the test then measures its own noise. Both errors are
measured here on a gradient that is right to 1e-15.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

VOCABULARY = 50
NUM_ROWS = 4
# As many coordinates as the test in question looked at, and the error it allowed.
NUM_CHECKS = 95
TOLERANCE = 0.05
# The step in question, and steps around it for the curve.
STEP = 1e-5
STEPS = tuple(10.0**-k for k in range(1, 10))


@dataclass(frozen=True, kw_only=True)
class DifferenceTest:
    """One finite-difference test of a right gradient."""

    dtype: str
    step: float
    failures: int
    checks: int
    mean_error: float
    """mean relative error of a coordinate"""
    rounding: float
    """u |L| / h, the noise to expect, over the mean size of a gradient coordinate"""
    curvature: float
    """h^2 / 6 times the third derivative, likewise"""


def difference_test(dtype: torch.dtype, step: float, seed: int = 0) -> DifferenceTest:
    """Sum over rows of softmax cross-entropy, differences at NUM_CHECKS coordinates, in `dtype`."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(NUM_ROWS, VOCABULARY, generator=generator, dtype=torch.float64)
    targets = torch.randint(VOCABULARY, (NUM_ROWS,), generator=generator)
    p = x.softmax(1)
    gradient = p.clone()
    gradient[torch.arange(NUM_ROWS), targets] -= 1
    chosen = torch.randperm(x.numel(), generator=generator)[:NUM_CHECKS]
    moved = x.to(dtype).flatten().expand(NUM_CHECKS, -1)
    nudge = torch.zeros_like(moved).scatter(1, chosen.unsqueeze(1), step)
    up = _loss((moved + nudge).unflatten(1, x.shape), targets)
    down = _loss((moved - nudge).unflatten(1, x.shape), targets)
    quotient = ((up - down) / (2 * step)).double()
    true = gradient.flatten()[chosen]
    error = ((quotient - true) / true).abs()
    size = true.abs().mean()
    # the third derivative of logsumexp along one coordinate is p (1 - p) (1 - 2p)
    third = (p * (1 - p) * (1 - 2 * p)).flatten()[chosen].abs().mean()
    loss = _loss(x.unsqueeze(0), targets).abs().item()
    return DifferenceTest(
        dtype=str(dtype).removeprefix("torch."),
        step=step,
        failures=int((error > TOLERANCE).sum()),
        checks=NUM_CHECKS,
        mean_error=float(error.mean()),
        rounding=torch.finfo(dtype).eps / 2 * loss / step / float(size),
        curvature=step**2 / 6 * float(third / size),
    )


def _loss(x: Tensor, targets: Tensor) -> Tensor:
    """Sum over the rows of each of K variants of the logits (K, R, V), in their dtype."""
    at = targets.expand(len(x), -1).unsqueeze(2)
    return (x.logsumexp(2) - x.gather(2, at).squeeze(2)).sum(1)


def quarrel(seed: int = 0) -> list[DifferenceTest]:
    """The test at every step, in float32 and in float64."""
    return [
        difference_test(dtype, step, seed)
        for dtype in (torch.float32, torch.float64)
        for step in STEPS
    ]


def settle(tests: list[DifferenceTest]) -> tuple[DifferenceTest, DifferenceTest]:
    """(the test as it was made: float32 at STEP; the test as it should be: float64 at its best step)."""
    disputed = next(t for t in tests if t.dtype == "float32" and t.step == STEP)
    right = min((t for t in tests if t.dtype == "float64"), key=lambda t: t.mean_error)
    return disputed, right
