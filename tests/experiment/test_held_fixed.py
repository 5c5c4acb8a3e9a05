"""Losses that move their own target, and losses that are what the step goes down on, written in several ways."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from single_step import tape_step
from traindoctor.checks.experiments import HELD_FIXED
from traindoctor.experiment.held_fixed import held_fixed

X, Y = torch.randn(8, 4), torch.tensor([0, 1, 2, 3] * 2)
Loss = Callable[[nn.Module], Tensor]


def next_value(model: nn.Module) -> Tensor:
    """Each row learns from the estimate of the next one."""
    value = model(X)[:, 0]
    with torch.no_grad():
        target = 1.0 + 0.9 * model(X)[:, 0].roll(-1)
    return F.mse_loss(value, target)


MOVING: dict[str, Loss] = {
    "a target that is detached": lambda m: F.mse_loss(m(X)[:4], m(X)[4:].detach()),
    "a target without gradient": next_value,
    "the data of a tensor": lambda m: (m(X) - m(X).data.flip(0)).square().mean(),
}
STILL: dict[str, Loss] = {
    "classes": lambda m: F.cross_entropy(m(X), Y),
    "a softmax that is kept from overflowing": lambda m: (
        -(m(X) - m(X).amax(1, keepdim=True).detach()).log_softmax(1)[range(8), Y].mean()
    ),
    "a mask that is chosen by scores": lambda m: (
        F.cross_entropy(m(X), Y, reduction="none") * (m(X).detach().amax(1) > 0)
    ).mean(),
}


def share(loss: Loss) -> float:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 4))
    return held_fixed(tape_step(lambda: loss(model), model))


@pytest.mark.parametrize("name", MOVING)
def test_parts_that_are_held_fixed_are_seen(name: str) -> None:
    assert share(MOVING[name]) > 4 * HELD_FIXED


@pytest.mark.parametrize("name", STILL)
def test_what_the_step_goes_down_on(name: str) -> None:
    assert share(STILL[name]) < HELD_FIXED / 100


def test_a_buffer_that_is_written_twice_says_nothing() -> None:
    """A power iteration: what it does has no derivative, and the rest of the step is not lost for it."""
    model = nn.Linear(4, 4)
    vector = torch.ones(4)

    def loss() -> Tensor:
        for _ in range(2):
            with torch.no_grad():
                vector.copy_(nn.functional.normalize(model.weight @ vector, dim=0))
        return (model(torch.eye(4)) / (vector @ model.weight @ vector)).square().mean()

    assert held_fixed(tape_step(loss, model)) == 0.0
