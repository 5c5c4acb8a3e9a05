"""The optimizer's step in several ways."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from parts import Patient, adamw, patient
from torch import Tensor


class Hand(torch.optim.Optimizer):
    """AdamW as its paper writes it, both moments corrected before the root is taken."""

    def __init__(self, parameters: Any, **settings: Any) -> None:
        usual = {"lr": 1e-2, "betas": (0.9, 0.95), "eps": 1e-8, "weight_decay": 0.1}
        super().__init__(parameters, usual | settings)

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                state = self.state[parameter]
                if not state:
                    state.update(t=0, m=torch.zeros_like(parameter), v=torch.zeros_like(parameter))
                state["t"] += 1
                self.move(parameter, parameter.grad, group, state)

    def move(self, w: Tensor, g: Tensor, group: dict[str, Any], state: dict[str, Any]) -> None:
        lr, (beta1, beta2) = group["lr"], group["betas"]
        state["m"] = beta1 * state["m"] + (1 - beta1) * g
        state["v"] = beta2 * state["v"] + (1 - beta2) * g * g
        mean = state["m"] / (1 - math.pow(beta1, state["t"]))
        square = state["v"] / (1 - math.pow(beta2, state["t"]))
        w.sub_(lr * (mean / (square.sqrt() + group["eps"]) + group["weight_decay"] * w))


def sgd(parameters: Any) -> torch.optim.SGD:
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9, foreach=False)


class HandSGD(torch.optim.Optimizer):
    def __init__(self, parameters: Any, momentum: float = 0.9) -> None:
        super().__init__(parameters, {"lr": 0.1, "momentum": momentum})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                state = self.state[parameter]
                old = state.get("velocity", torch.zeros_like(parameter))
                # The rate inside the velocity: the same while the rate does not change.
                state["velocity"] = group["momentum"] * old - group["lr"] * parameter.grad
                parameter.add_(state["velocity"])


def loop() -> Patient:
    return patient()


def foreach() -> Patient:
    return patient(optimizer=lambda p: adamw(p, foreach=True))


def fused() -> Patient:
    return patient(optimizer=lambda p: adamw(p, foreach=None, fused=True))


def hand() -> Patient:
    return patient(optimizer=Hand)


def momentum() -> Patient:
    return patient(optimizer=sgd)


def momentum_by_hand() -> Patient:
    return patient(optimizer=HandSGD)
