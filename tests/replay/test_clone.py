"""A clone steps copies by the rule of the script's optimizer, bit for bit, and touches nothing else."""

from __future__ import annotations

import pytest
import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from traindoctor.errors import ReplayError
from traindoctor.replay.clone import betas_of, clone_of, copy_state

OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01),
    "adam": lambda p: torch.optim.Adam(p, lr=0.01, weight_decay=0.1, amsgrad=True),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.01, momentum=0.5),
    "adafactor": lambda p: torch.optim.Adafactor(p, lr=0.01),
    "nadam": lambda p: torch.optim.NAdam(p, lr=0.01),
}


class SignOptimizer(torch.optim.Optimizer):
    """A user's own: it keeps an attribute beside groups and state."""

    def __init__(self, params, lr):
        super().__init__(params, {"lr": lr})
        self.damping = 0.5

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                p.sub_(group["lr"] * self.damping * p.grad.sign())


def trained(make, steps: int = 3):
    torch.manual_seed(0)
    parameters = [torch.nn.Parameter(torch.randn(4, 3)), torch.nn.Parameter(torch.randn(3))]
    optimizer = make(parameters)
    for _ in range(steps):
        give_gradients(parameters)
        optimizer.step()
    return parameters, optimizer


def give_gradients(parameters) -> None:
    for p in parameters:
        p.grad = torch.randn_like(p)


@pytest.mark.parametrize("name", [*OPTIMIZERS, "own"])
def test_the_clone_takes_the_step_the_optimizer_takes(name: str) -> None:
    make = OPTIMIZERS.get(name, lambda p: SignOptimizer(p, 0.1))
    parameters, optimizer = trained(make)
    clone = clone_of(optimizer)
    for _ in range(2):
        give_gradients(parameters)
        clone.step([[p.grad for p in parameters]])
        optimizer.step()
        for copy, p in zip(clone.tensors[0], parameters):
            torch.testing.assert_close(copy, p.detach(), rtol=1e-6, atol=1e-7)


def test_cloning_and_stepping_leaves_the_original_alone() -> None:
    parameters, optimizer = trained(OPTIMIZERS["adam"])
    give_gradients(parameters)
    weights = [p.detach().clone() for p in parameters]
    state = copy_state({i: optimizer.state[p] for i, p in enumerate(parameters)})
    clone = clone_of(optimizer, dtype=torch.float64)
    clone.step([[p.grad for p in parameters]])
    clone.groups[0]["lr"] = 99.0
    assert optimizer.param_groups[0]["lr"] == 0.01
    for i, p in enumerate(parameters):
        assert torch.equal(p, weights[i])
        assert p.grad is not None
        for key, value in state[i].items():
            assert torch.equal(optimizer.state[p][key], value)


def test_no_hook_fires_and_no_scheduler_counts() -> None:
    parameters, optimizer = trained(OPTIMIZERS["sgd"], steps=1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 10)
    fired = []
    handle = register_optimizer_step_pre_hook(lambda *_: fired.append(1))
    try:
        give_gradients(parameters)
        clone_of(optimizer).step([[p.grad for p in parameters]])
    finally:
        handle.remove()
    assert fired == []
    assert scheduler.last_epoch == 0


def test_forgetting_is_a_first_step() -> None:
    parameters, optimizer = trained(OPTIMIZERS["adam"])
    clone = clone_of(optimizer)
    clone.forget()
    before = clone.tensors[0][0].clone()
    clone.step([[torch.ones_like(p) for p in parameters]])
    # Adam's first step has the length of the rate, whatever the gradient (and here a decay that is small).
    assert (clone.tensors[0][0] - before).abs().mean() == pytest.approx(0.01, rel=1e-3)


@pytest.mark.parametrize("name", ["adam", "rmsprop", "momentum"])
def test_a_rescaled_state_is_that_of_longer_gradients(name: str) -> None:
    """Steps of Adam and RMSprop are the same then, momentum's are longer by the factor."""
    make = {
        "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.01, momentum=0.5, eps=0.0),
        "adam": lambda p: torch.optim.Adam(p, lr=0.01, eps=0.0),
        "momentum": lambda p: torch.optim.SGD(p, lr=0.01, momentum=0.9),
    }[name]
    parameters, optimizer = trained(make)
    give_gradients(parameters)
    usual, longer = (
        clone_of(optimizer, dtype=torch.float64),
        clone_of(optimizer, dtype=torch.float64),
    )
    longer.rescale(10.0)
    usual.step([[p.grad.double() for p in parameters]])
    longer.step([[10 * p.grad.double() for p in parameters]])
    factor = 10.0 if name == "momentum" else 1.0
    for one, other, p in zip(usual.tensors[0], longer.tensors[0], parameters):
        moved = one - p.detach().double()
        torch.testing.assert_close(other - p.detach().double(), factor * moved)


def test_a_rule_that_wants_a_closure_is_refused_with_its_reason() -> None:
    parameter = torch.nn.Parameter(torch.ones(2))
    clone = clone_of(torch.optim.LBFGS([parameter]))
    with pytest.raises(ReplayError, match="LBFGS"):
        clone.step([[torch.ones(2)]])


@pytest.mark.parametrize(
    ("group", "found"),
    [
        ({"betas": (0.9, 0.99)}, (0.9, 0.99)),
        ({"beta1": 0.8, "beta2": 0.95, "eps": 0.1}, (0.8, 0.95)),
        ({"b1": 0.8, "b2": 0.95}, (0.8, 0.95)),
        ({"momentum": 0.9}, None),
        ({"betas": "auto"}, None),
    ],
)
def test_adams_betas_are_known_by_any_of_their_names(group: dict, found) -> None:
    assert betas_of(group) == found
