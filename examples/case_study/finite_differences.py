"""Field reports B and C: was it the kernel that failed, or the test?

    python examples/case_study/finite_differences.py

A correct gradient is compared with finite differences in float32 at a step of 1e-5, as the reports did, and in
float64; and the error of plain summation, which report C blamed, is measured beside it.
"""

from __future__ import annotations

import torch
from torch import Tensor

VOCABULARY, ROWS, CHECKS = 50, 34, 95
STEP = 1e-5
# The reports called a relative difference above this a failure.
TOLERANCE = 0.01


def loss_of(logits: Tensor, targets: Tensor) -> Tensor:
    return torch.nn.functional.cross_entropy(logits, targets)


def relative_errors(dtype: torch.dtype, step: float) -> Tensor:
    """|difference - gradient| / |gradient| for 95 entries of a gradient that is right."""
    torch.manual_seed(0)
    logits = torch.randn(ROWS, VOCABULARY, dtype=torch.float64)
    targets = torch.randint(VOCABULARY, (ROWS,))
    exact = logits.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(loss_of(exact, targets), exact)
    places = torch.randperm(logits.numel())[:CHECKS]
    errors = []
    for place in places.tolist():
        ends = []
        for sign in (1, -1):
            moved = logits.to(dtype).flatten().clone()
            moved[place] += sign * step
            ends.append(loss_of(moved.view_as(logits), targets))
        estimate = float(ends[0] - ends[1]) / (2 * step)
        true = float(gradient.flatten()[place])
        errors.append(abs(estimate - true) / abs(true))
    return torch.tensor(errors)


def summation_error(terms: int = 34) -> float:
    """The largest relative error of a plain float32 sum of so many exponentials, over a thousand sums."""
    torch.manual_seed(1)
    values = torch.randn(1000, terms, dtype=torch.float64).exp()
    plain = torch.zeros(1000, dtype=torch.float32)
    for column in range(terms):
        plain += values[:, column].float()
    exact = values.float().double().sum(1)
    return float(((plain.double() - exact).abs() / exact).max())


def main() -> None:
    for dtype in (torch.float32, torch.float64):
        errors = relative_errors(dtype, STEP)
        failed = int((errors > TOLERANCE).sum())
        print(
            f"{dtype}, step {STEP:g}: {failed} of {CHECKS} checks fail, mean error {errors.mean():.1e}"
        )
    print(f"plain float32 sum of 34 terms: off by {summation_error():.1e} at most")


if __name__ == "__main__":
    main()
