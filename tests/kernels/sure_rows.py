"""Rows whose target leads every other class by many nats, and what their loss and gradient are."""

from __future__ import annotations

import torch
from torch import Tensor

LEADS = [10.0, 17.0, 25.0, 40.0]


def sure_rows(num_rows: int, V: int, lead: float, *, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Float32 logits and targets: half of the rows spread over many other classes, half over a few."""
    generator = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(num_rows, V, generator=generator)
    logits[num_rows // 2 :] *= 2.5
    targets = torch.randint(V, (num_rows,), generator=generator)
    column = targets.unsqueeze(1)
    others = logits.scatter(1, column, -torch.inf).amax(1, keepdim=True)
    return logits.scatter(1, column, others + lead), targets


def sure_products(num_rows: int, V: int, lead: float) -> tuple[Tensor, Tensor, Tensor]:
    """Float32 hidden, weight and targets of such rows, in eighths: every product and sum of them is exact."""
    generator = torch.Generator().manual_seed(V)
    hidden = torch.randint(-8, 9, (num_rows, 32), generator=generator) / 8
    weight = torch.randint(-8, 9, (V, 32), generator=generator) / 8
    targets = torch.randint(V, (num_rows,), generator=generator)
    logits, column = hidden @ weight.T, targets.unsqueeze(1)
    others = logits.scatter(1, column, -torch.inf).amax(1, keepdim=True)
    missing = (others + lead - logits.gather(1, column)).squeeze(1)
    # A dimension for each row alone, in which its target gets what it lacks.
    push = torch.zeros(V, num_rows)
    push[targets, torch.arange(num_rows)] = missing
    return (
        torch.cat((hidden, torch.eye(num_rows)), dim=1),
        torch.cat((weight, push), dim=1),
        targets,
    )


def truth(logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Losses and their gradients in float64, without a difference of nearly equal numbers."""
    x, column = logits.double(), targets.unsqueeze(1)
    ratios = (x - x.gather(1, column)).exp().scatter(1, column, 0)  # p_j / p_target
    others = ratios.sum(1, keepdim=True)
    gradient = ratios.scatter(1, column, -others) / (1 + others)
    return torch.log1p(others).squeeze(1), gradient


def units_off(losses: Tensor, true: Tensor) -> Tensor:
    """Distance from the truth (float64) in units of the last place of its float32 neighbour."""
    rounded = true.float()
    unit = torch.nextafter(rounded, torch.full_like(rounded, torch.inf)) - rounded
    return (losses.double() - true).abs() / unit.double()


def worst_row(found: Tensor, true: Tensor) -> float:
    """The largest relative error of a row of a gradient."""
    return float(((found.double() - true).norm(dim=1) / true.norm(dim=1)).max())
