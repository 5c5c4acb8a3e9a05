"""What the pairs are made of: a small GPT whose pieces are methods, so that a pair changes one of them.

B batch, T tokens, D width, H heads, S head size, V vocabulary.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

BATCH, BLOCK, VOCAB, WIDTH, HEADS, LAYERS, STEPS = 4, 16, 64, 32, 4, 2, 3
DEVICE = os.environ.get("PAIRS_DEVICE", "cpu")

Loss = Callable[[Any, Any], Tensor]
Patient = tuple[nn.Module, list[Any], Loss, torch.optim.Optimizer]


class Block(nn.Module):
    """Attention and feed-forward behind a norm each."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1 = self.make_norm()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)
        self.norm2 = self.make_norm()
        self.up = nn.Linear(WIDTH, 4 * WIDTH)
        self.down = nn.Linear(4 * WIDTH, WIDTH)

    def make_norm(self) -> nn.Module:
        return nn.LayerNorm(WIDTH)

    def parts(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values, (B, T, D) each."""
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        return q, k, v

    def split(self, x: Tensor) -> Tensor:
        return x.view(*x.shape[:-1], HEADS, -1).transpose(1, 2)  # (B, H, T, S)

    def merge(self, x: Tensor) -> Tensor:
        return x.transpose(1, 2).flatten(2)  # (B, T, D)

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """(B, H, T, S) each."""
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)

    def attention(self, x: Tensor) -> Tensor:
        mixed = self.attend(*(self.split(part) for part in self.parts(x)))
        return self.out(self.merge(mixed))

    def act(self, x: Tensor) -> Tensor:
        return F.gelu(x)

    def mlp(self, x: Tensor) -> Tensor:
        return self.down(self.act(self.up(x)))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class GPT(nn.Module):
    """Learned positions, an output layer of its own."""

    def __init__(self, blocks: Iterable[type[Block]] = (Block,) * LAYERS) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCAB, WIDTH)
        self.positions = nn.Embedding(BLOCK, WIDTH)
        self.blocks = nn.ModuleList(block() for block in blocks)
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCAB, bias=False)
        initialise(self)

    def enter(self, tokens: Tensor) -> Tensor:
        return self.embedding(tokens) + self.positions.weight[: tokens.shape[1]]

    def hidden(self, tokens: Tensor) -> Tensor:
        x = self.enter(tokens)
        for block in self.blocks:
            x = block(x)
        return self.norm(x)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.hidden(tokens))


def middle(wrong: type[Block]) -> GPT:
    """Three layers, the second of this class."""
    return GPT((Block, wrong, Block))


@torch.no_grad()
def initialise(model: nn.Module, std: float = 0.2) -> None:
    """As after some training: biases and the scales of norms are random too."""
    for parameter in model.parameters():
        if parameter.dim() < 2:
            parameter.add_(torch.randn_like(parameter), alpha=std)
        else:
            parameter.normal_(std=std)


def by_hand(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Causal attention, (B, H, T, S) each."""
    score = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
    return masked(score).softmax(-1) @ v


def masked(score: Tensor, diagonal: int = 1) -> Tensor:
    """The future, from this diagonal on, is not seen."""
    future = torch.ones(score.shape[-2:], dtype=torch.bool, device=score.device).triu(diagonal)
    return score.masked_fill(future, -math.inf)


def batches() -> list[dict[str, Tensor]]:
    rows = torch.randint(VOCAB, (STEPS, BATCH, BLOCK + 1), device=DEVICE)
    return [{"tokens": row[:, :-1], "targets": row[:, 1:]} for row in rows]


def mean_loss(model: Any, batch: Any) -> Tensor:
    logits = model(batch["tokens"])  # (B, T, V)
    return F.cross_entropy(logits.float().flatten(0, 1), batch["targets"].flatten())


def autocast(loss: Loss) -> Loss:
    """The loss with matrix products in bfloat16."""

    def inside(model: Any, batch: Any) -> Tensor:
        with torch.autocast(DEVICE, torch.bfloat16):
            return loss(model, batch)

    return inside


def adamw(parameters: Any, **settings: Any) -> torch.optim.AdamW:
    settings = {"lr": 1e-2, "betas": (0.9, 0.95), "weight_decay": 0.1, "foreach": False} | settings
    return torch.optim.AdamW(parameters, **settings)


def patient(
    model: nn.Module | None = None,
    *,
    loss: Loss = mean_loss,
    optimizer: Callable[[Any], torch.optim.Optimizer] = adamw,
    dtype: torch.dtype = torch.float32,
    data: Sequence[Any] = (),
) -> Patient:
    """What a function for `traindoctor compare` gives; what is not said is as usual."""
    model = (GPT() if model is None else model).to(DEVICE, dtype)
    return model, list(data) or batches(), loss, optimizer(model.parameters())
