"""Training inside asyncio, with other coroutines between the steps and steps sent to a thread."""

from __future__ import annotations

import asyncio

import torch
from toy import batch, finish, loss_of, seed, tiny_model

seed()
model = tiny_model()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
ticks: list[int] = []


def one_step(step: int) -> float:
    tokens, targets = batch()
    loss = loss_of(model(tokens), targets)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.item()


async def tick() -> None:
    for number in range(5):
        ticks.append(number)
        await asyncio.sleep(0)


async def main() -> None:
    beside = asyncio.create_task(tick())
    for step in range(6):
        print(step, repr(one_step(step)))
        await asyncio.sleep(0)
    for step in range(6, 12):
        print(step, repr(await asyncio.to_thread(one_step, step)))
    await beside


asyncio.run(main())
print(ticks)
finish(model, optimizer)
