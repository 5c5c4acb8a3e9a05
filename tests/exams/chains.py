"""Sequences in which each token depends on the last, a model for them, and what a run keeps of their batches.

Legend: B rows, T places, D features, V tokens.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from traindoctor.experiment.snapshot import StepLog

B, T, D, V = 8, 24, 16, 12


class Model(nn.Module):
    def __init__(self, width: int = D) -> None:
        super().__init__()
        self.token, self.place = nn.Embedding(V, width), nn.Embedding(T, width)
        self.layer = nn.TransformerEncoderLayer(width, 1, 4 * width, dropout=0.1, batch_first=True)
        self.head = nn.Linear(width, V)

    def forward(self, x: Tensor) -> Tensor:
        mask = torch.full((T, T), -torch.inf).triu(1)
        h = self.layer(self.token(x) + self.place(torch.arange(T)), src_mask=mask)
        return self.head(h)


def chain(step: int) -> Tensor:
    """Each token is the last one plus 1 or 2: something can be learned."""
    generator = torch.Generator().manual_seed(step)
    return torch.cumsum(torch.randint(1, 3, (B, T + 1), generator=generator), 1) % V


def loss(model: nn.Module, ids: Tensor) -> Tensor:
    return F.cross_entropy(model(ids[:, :T]).flatten(0, 1), ids[:, 1:].flatten())


def kept(step: int, *, apart: bool) -> StepLog:
    ids = chain(step)
    targets = ids[:, 1:]
    if apart:
        targets = torch.randint(0, V, targets.shape, generator=torch.Generator().manual_seed(step))
    data = {("tokens", 0, 0): ids[:, :T], ("tokens", 1, 0): torch.arange(T)}
    return StepLog(step, data={**data, ("loss", 0, 0): targets.reshape(-1)})


def measured(step: int, *, apart: bool) -> StepLog:
    """Signals and their mean over the first places; or the mean of another row's."""
    signals = torch.randn(32, 12, generator=torch.Generator().manual_seed(step))
    numbers = signals[:, :4].mean(1).roll(int(apart))
    return StepLog(step, data={("forward", 0, 0): signals, ("loss", 0, 0): numbers})
