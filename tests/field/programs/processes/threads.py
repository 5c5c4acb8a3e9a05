"""Three threads train three models at once: what a watcher keeps for one must not reach another."""

from __future__ import annotations

import threading

import torch
from torch import Tensor, nn
from toy import batch, finish, loss_of, seed, tiny_model

seed()
models = [tiny_model(dropout=0.0) for _ in range(3)]
rows = [[batch() for _ in range(12)] for _ in models]
losses: dict[int, list[float]] = {}
optimizers = [torch.optim.AdamW(model.parameters(), lr=1e-3) for model in models]


def train(number: int, model: nn.Module, batches: list[tuple[Tensor, Tensor]]) -> None:
    losses[number] = []
    for tokens, targets in batches:
        loss = loss_of(model(tokens), targets)
        optimizers[number].zero_grad()
        loss.backward()
        optimizers[number].step()
        losses[number].append(loss.item())


threads = [
    threading.Thread(target=train, args=(number, model, batches))
    for number, (model, batches) in enumerate(zip(models, rows))
]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
for number in range(3):
    print(number, losses[number])
finish(*models, *optimizers)
