"""Errors that the script catches and goes on after: out of memory, a graph used twice, a bad token, a bad step."""

from __future__ import annotations

import traceback

import torch
from torch import nn
from toy import batch, finish, fit, loss_of, seed, tiny_model

seed()
model = tiny_model()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)


def twice() -> None:
    loss = loss_of(model(batch()[0]), batch()[1])
    loss.backward()
    loss.backward()


def out_of_memory() -> None:
    with torch.no_grad():
        model(torch.empty(1 << 50, dtype=torch.long))


def wrong_shape() -> None:
    nn.functional.cross_entropy(torch.zeros(2, 3), torch.zeros(5, dtype=torch.long))


def interrupted() -> None:
    loss_of(model(batch()[0]), batch()[1]).backward()
    raise MemoryError("no more")


def bad_closure() -> None:
    optimizer.step(5)


for number, trouble in enumerate((twice, out_of_memory, wrong_shape, interrupted, bad_closure)):
    fit(model, optimizer, steps=3)
    try:
        trouble()
    except Exception as error:
        frames = [frame.name for frame in traceback.extract_tb(error.__traceback__)]
        first = str(error).splitlines()[0].split(" (")[0]
        print(number, type(error).__name__, first, frames[:2], frames[-1])
fit(model, optimizer, steps=3)
finish(model, optimizer)
