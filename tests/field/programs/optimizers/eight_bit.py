"""Adam with 8-bit moments: rounding is stochastic, so one extra call would use up random numbers."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn
from toy import finish, fit, seed, tiny_model


def packed(values: Tensor) -> tuple[Tensor, Tensor]:
    """Whole numbers from -127 to 127 and their scale, rounded up or down by chance."""
    scale = values.abs().max().clamp(min=1e-12) / 127
    return (values / scale + torch.rand_like(values) - 0.5).round().to(torch.int8), scale


def unpacked(codes: Tensor, scale: Tensor) -> Tensor:
    return codes.to(torch.float32) * scale


class Adam8bit(torch.optim.Optimizer):
    def __init__(self, parameters: Iterable[nn.Parameter], lr: float = 1e-2) -> None:
        super().__init__(parameters, {"lr": lr, "betas": (0.9, 0.99)})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:
        for group in self.param_groups:
            first, second = group["betas"]
            for parameter in group["params"]:
                state = self.state[parameter]
                if not state:
                    state["mean"] = packed(torch.zeros_like(parameter))
                    state["root"] = packed(torch.zeros_like(parameter))
                mean = unpacked(*state["mean"]).lerp(parameter.grad, 1 - first)
                square = unpacked(*state["root"]).square().lerp(parameter.grad**2, 1 - second)
                state["mean"], state["root"] = packed(mean), packed(square.sqrt())
                parameter.addcdiv_(mean, square.sqrt() + 1e-6, value=-group["lr"])


seed()
model = tiny_model()
optimizer = Adam8bit(model.parameters())
fit(model, optimizer)
finish(model, optimizer)
