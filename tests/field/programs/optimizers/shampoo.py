"""A Shampoo-like preconditioner: matrix statistics in the state, roots recomputed by a call counter."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from toy import finish, fit, seed, tiny_model


def inverse_root(matrix: Tensor, power: int) -> Tensor:
    values, vectors = torch.linalg.eigh(matrix)
    return vectors @ torch.diag(values.clamp(min=1e-6) ** (-1 / power)) @ vectors.T


class Shampoo(torch.optim.Optimizer):
    calls = 0  # on the class, as many implementations do

    def __init__(self, parameters: Iterable[nn.Parameter], lr: float = 0.05) -> None:
        super().__init__(parameters, {"lr": lr, "every": 4})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:
        Shampoo.calls += 1
        for group in self.param_groups:
            for parameter in group["params"]:
                self.update(parameter, parameter.grad, self.state[parameter], group)

    def update(
        self, parameter: Tensor, grad: Tensor, state: dict[str, Any], group: dict[str, Any]
    ) -> None:
        if grad.ndim != 2:
            parameter.add_(grad, alpha=-group["lr"])
            return
        if not state:
            state["left"] = 1e-3 * torch.eye(grad.shape[0], device=grad.device)
            state["right"] = 1e-3 * torch.eye(grad.shape[1], device=grad.device)
        state["left"] += grad @ grad.T
        state["right"] += grad.T @ grad
        if Shampoo.calls % group["every"] == 1:
            state["roots"] = inverse_root(state["left"], 4), inverse_root(state["right"], 4)
        left, right = state["roots"]
        parameter.add_(left @ grad @ right, alpha=-group["lr"])


seed()
model = tiny_model()
optimizer = Shampoo(model.parameters())
fit(model, optimizer)
print(Shampoo.calls)
finish(model, optimizer)
