"""Rows the model is sure of: the float32 loss to two units in the last place, the gradient to 1e-6."""

from __future__ import annotations

import pytest
import torch

from kernels.sure_rows import LEADS, sure_products, sure_rows, truth, units_off, worst_row
from traindoctor import cross_entropy, linear_cross_entropy

IMPLEMENTATIONS = ["reference", "torch"]


@pytest.mark.parametrize("reduction", ["none", "sum"])
@pytest.mark.parametrize("lead", LEADS)
@pytest.mark.parametrize("V", [2, 5, 50, 257, 1003, 5003])
@pytest.mark.parametrize("impl", IMPLEMENTATIONS)
def test_cross_entropy(impl: str, V: int, lead: float, reduction: str) -> None:
    logits, targets = sure_rows(min(2000, 1_000_000 // V), V, lead)
    true, gradient = truth(logits, targets)
    logits.requires_grad_()
    losses = cross_entropy(logits, targets, reduction=reduction, impl=impl)
    losses.sum().backward()
    assert losses.dtype == torch.float32
    expected = true if reduction == "none" else true.sum()
    assert units_off(losses.detach(), expected).max() <= 2
    assert worst_row(logits.grad, gradient) < 1e-6
    column = targets.unsqueeze(1)
    at_target = (logits.grad.gather(1, column) / gradient.gather(1, column) - 1).abs()
    assert at_target.max() < 1e-6


@pytest.mark.parametrize("lead", LEADS)
@pytest.mark.parametrize("V", [50, 1003])
@pytest.mark.parametrize("impl", IMPLEMENTATIONS)
def test_linear_cross_entropy(impl: str, V: int, lead: float) -> None:
    hidden, weight, targets = sure_products(60, V, lead)
    true, dlogits = truth(hidden.double() @ weight.double().T, targets)
    leaves = [hidden.requires_grad_(), weight.requires_grad_()]
    losses = linear_cross_entropy(*leaves, targets, reduction="none", impl=impl)
    losses.sum().backward()
    assert units_off(losses.detach(), true).max() <= 2
    assert worst_row(hidden.grad, dlogits @ weight.detach().double()) < 1e-6
    dweight = dlogits.T @ hidden.detach().double()
    assert (weight.grad.double() - dweight).norm() < 1e-6 * dweight.norm()


@pytest.mark.parametrize("lead", LEADS)
def test_the_truth_itself_against_fifty_digits(lead: float) -> None:
    mpmath = pytest.importorskip("mpmath")
    logits, targets = sure_rows(6, 50, lead)
    losses, gradient = truth(logits, targets)
    with mpmath.workdps(50):
        for row, target, loss, g in zip(logits.tolist(), targets, losses, gradient):
            x_t = mpmath.mpf(row[target])
            others = mpmath.fsum(
                mpmath.exp(mpmath.mpf(x) - x_t) for j, x in enumerate(row) if j != target
            )
            assert float(loss) == pytest.approx(float(mpmath.log1p(others)), rel=1e-14)
            assert float(g[target]) == pytest.approx(float(-others / (1 + others)), rel=1e-14)


@pytest.mark.parametrize("impl", IMPLEMENTATIONS)
def test_the_edges_are_those_of_torch(impl: str) -> None:
    """All others masked out, the target masked out, a target of +inf, a tie at the top, one class alone."""
    inf = torch.inf
    logits = torch.tensor([[1.0, -inf, -inf], [-inf, 0.5, 0.5], [inf, 0, 0], [2, 2, -1], [0, 9, 0]])
    targets = torch.zeros(5, dtype=torch.long)

    def run(function, logits, **options):  # type: ignore[no-untyped-def]
        logits = logits.detach().double().requires_grad_()
        losses = function(logits, targets, reduction="none", **options)
        losses.sum().backward()
        return losses.detach(), logits.grad

    for rows in (logits, logits[:, :1].nan_to_num(posinf=0.0, neginf=0.0)):
        found = run(cross_entropy, rows, impl=impl)
        expected = run(torch.nn.functional.cross_entropy, rows)
        torch.testing.assert_close(found, expected, equal_nan=True)
