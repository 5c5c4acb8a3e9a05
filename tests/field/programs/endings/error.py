"""An error in the forward pass, the loss, the backward pass, a step, a hook or between: same traceback, same status."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from toy import DEVICE, TinyLM, batch, loss_of, seed

place = sys.argv[1]


class Boom(Exception):
    pass


def explode(*_: Any) -> Any:
    try:
        return 1 / 0
    except ZeroDivisionError as error:
        raise Boom(f"in {place}") from error


class Fragile(TinyLM):
    broken = False

    def forward(self, tokens: Tensor) -> Tensor:
        if self.broken and place == "forward":
            explode()
        return super().forward(tokens)


class FragileSGD(torch.optim.SGD):
    broken = False

    def step(self, closure: Callable[[], Tensor] | None = None) -> Tensor | None:
        if self.broken and place == "step":
            explode()
        return super().step(closure)


seed()
model = Fragile().to(DEVICE)
optimizer = FragileSGD(model.parameters(), lr=0.1)
for step in range(10):
    model.broken = optimizer.broken = step == 8
    tokens, targets = batch()
    if step == 8 and place == "token":
        tokens = tokens + 99
    if step == 8 and place == "shape":
        nn.Linear(3, 3)(torch.zeros(2, 2))
    logits = model(tokens)
    if step == 8 and place == "hook":
        logits.register_hook(explode)
    loss = loss_of(logits, targets[:, 1:] if step == 8 and place == "loss" else targets)
    optimizer.zero_grad()
    loss.backward()
    if step == 8 and place == "backward":
        loss.backward()
    optimizer.step()
    print(step, repr(loss.item()), flush=True)
    if step == 8 and place == "between":
        explode()
    if step == 8 and place == "memory":
        torch.empty(1 << 55)
