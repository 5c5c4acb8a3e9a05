"""Hogwild: processes that train one model in shared memory, by fork and by spawn, one after the other."""

from __future__ import annotations

import sys

import torch
import torch.multiprocessing as mp
from torch import nn
from toy import batch, digest, finish, loss_of, seed, tiny_model


def train(rank: int, model: nn.Module) -> None:
    torch.manual_seed(rank)
    torch.set_num_threads(1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    losses = []
    for _ in range(10):
        tokens, targets = batch()
        loss = loss_of(model(tokens), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    with open(f"worker-{rank}.txt", "w") as file:
        file.write(f"{digest(model)} {losses!r}\n")


if __name__ == "__main__":
    seed()
    model = tiny_model()
    model.share_memory()
    # One at a time: real Hogwild has no fixed order of updates, and we compare bits.
    for rank, method in enumerate(sys.argv[1:]):
        process = mp.get_context(method).Process(target=train, args=(rank, model))
        process.start()
        process.join()
        print(method, "ended with", process.exitcode, digest(model))
    mp.spawn(train, args=(model,), nprocs=1)
    finish(model)
