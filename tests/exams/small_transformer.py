"""A small transformer whose parts can be spoilt one by one, and losses for it.

Legend: B rows, T places, D features, V tokens.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

B, T, D, V = 6, 14, 16, 31


class Attention(nn.Module):
    def __init__(self, *, dim: int = -1, factor: float = 0.5, mask: str = "causal") -> None:
        super().__init__()
        self.qkv, self.out, self.drop = nn.Linear(D, 3 * D), nn.Linear(D, D), nn.Dropout(0.1)
        self.dim, self.factor, self.mask = dim, factor, mask

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (
            part.unflatten(-1, (4, 4)).transpose(1, 2) for part in self.qkv(x).chunk(3, dim=-1)
        )
        scores = q @ k.transpose(-2, -1) * self.factor  # (B, H, T, T)
        ahead = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool)
        ahead = ahead.triu({"off by one": 2}.get(self.mask, 1))
        if self.mask in ("causal", "off by one"):
            scores = scores.masked_fill(ahead, -torch.inf)
        elif self.mask == "only self":
            scores = scores.masked_fill(~torch.eye(x.shape[1], dtype=torch.bool), -torch.inf)
        weights = scores.softmax(self.dim)
        if self.mask == "after":
            weights = weights.masked_fill(ahead, 0.0)
        return self.out((self.drop(weights) @ v).transpose(1, 2).flatten(2))


class Model(nn.Module):
    """A small transformer whose parts can be spoilt one by one."""

    def __init__(
        self,
        *,
        skip: bool = True,
        places: bool = True,
        prefix: bool = False,
        pooled: int = 0,
        norm: Callable[[], nn.Module] = lambda: nn.LayerNorm(D),
        init: float | None = None,
        bias: float | None = None,
        **attention: Any,
    ) -> None:
        super().__init__()
        self.skip, self.pooled, self.prefix = skip, pooled, prefix
        self.token = nn.Embedding(V, D)
        self.place = nn.Embedding(T, D) if places else None
        self.attention = nn.ModuleList(Attention(**attention) for _ in range(2))
        self.mlp = nn.ModuleList(
            nn.Sequential(nn.Linear(D, 24), nn.ReLU(), nn.Linear(24, D)) for _ in range(2)
        )
        self.norm = nn.ModuleList(norm() for _ in range(4))
        self.head = nn.Linear(D, pooled or V)
        for module in self.modules():
            if isinstance(module, nn.Linear) and init is not None:
                nn.init.normal_(module.weight, std=init)
            if isinstance(module, nn.Linear) and bias is not None:
                nn.init.constant_(module.bias, bias)

    def forward(self, x: Tensor) -> Tensor:
        h = self.token(x)
        if self.prefix:  # a vector in front of the tokens; the last score is cut off, not the first
            h = torch.cat([torch.zeros_like(h[:, :1]), h[:, :-1]], dim=1)
        if self.place is not None:
            h = h + self.place(torch.arange(x.shape[1]))
        for i in range(2):
            for part, norm in ((self.attention[i], self.norm[i]), (self.mlp[i], self.norm[i + 2])):
                new = part(norm(h))
                h = h + new if self.skip else new
        return self.head(h.mean(1) if self.pooled else h)


def text(step: int) -> Tensor:
    return torch.randint(1, V, (B, T + 3), generator=torch.Generator().manual_seed(step))


def next_token(model: nn.Module, ids: Tensor) -> Tensor:
    return F.cross_entropy(model(ids[:, :T]).flatten(0, 1), ids[:, 1 : T + 1].flatten())


def reverse(model: nn.Module, ids: Tensor) -> Tensor:
    ids = ids[:, :T]
    return F.cross_entropy(model(ids).flatten(0, 1), ids.flip(1).flatten())


def classify_all(model: nn.Module, ids: Tensor) -> Tensor:
    ids = ids[:, :T]
    return F.cross_entropy(model(ids).flatten(0, 1), (ids % 5).flatten())


def classify(model: nn.Module, ids: Tensor) -> Tensor:
    return F.cross_entropy(model(ids[:, :T]), ids[:, 3] % 5)
