"""A model over clouds of points, each of which attends to the points nearest to it: planted where the order of examples is asked for."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from patients import patient_of
from torch import Tensor, nn

from traindoctor.experiment.patient import Patient

B, N, K, D, CLASSES = 6, 10, 3, 16, 4
Gather = Callable[[Tensor, Tensor], Tensor]


def offset_by_hand(h: Tensor, near: Tensor) -> Tensor:
    start = torch.arange(len(h))[:, None, None] * h.shape[1]
    return h.reshape(-1, h.shape[-1])[near + start]


def without_offset(h: Tensor, near: Tensor) -> Tensor:
    return h.reshape(-1, h.shape[-1])[near]


def rows_of_each(h: Tensor, near: Tensor) -> Tensor:
    return h[torch.arange(len(h))[:, None, None], near]


def gathered(h: Tensor, near: Tensor) -> Tensor:
    places = near.flatten(1).unsqueeze(-1).expand(-1, -1, h.shape[-1])
    return h.gather(1, places).unflatten(1, near.shape[1:])


def selected_without_offset(h: Tensor, near: Tensor) -> Tensor:
    return h.flatten(0, 1).index_select(0, near.flatten()).view(*near.shape, -1)


class Cloud(nn.Module):
    """Attention over the nearest points of each point."""

    def __init__(self, gather: Gather) -> None:
        super().__init__()
        self.into, self.query = nn.Linear(3, D), nn.Linear(D, D)
        self.key_value, self.out = nn.Linear(D, 2 * D), nn.Linear(D, CLASSES)
        self.gather = gather

    def forward(self, points: Tensor) -> Tensor:
        h = self.into(points)
        near = torch.cdist(points, points).topk(K, largest=False).indices
        key, value = self.gather(self.key_value(h), near).chunk(2, -1)
        weights = (self.query(h).unsqueeze(2) * key).sum(-1).softmax(-1)
        return self.out((h + (weights.unsqueeze(-1) * value).sum(2)).mean(1))


def examined(gather: Gather) -> Patient:
    torch.manual_seed(0)
    model, points, targets = Cloud(gather), torch.randn(B, N, 3), torch.randint(CLASSES, (B,))
    return patient_of(model, lambda: F.cross_entropy(model(points), targets))
