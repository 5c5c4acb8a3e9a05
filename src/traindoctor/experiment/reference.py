"""A plain transformer of a usual size, to hold the run against: does it learn what the run does not?

Legend: B rows, T places, V tokens, C classes.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from traindoctor.ground import losses
from traindoctor.ground.modes import seed_generators

WIDTH, HEADS, LAYERS = 64, 4, 2
RATE = 3e-3
PASSES = 2
HELD_OUT = 6
LEAST_BATCHES = 16
# The exam stops here; it says how many steps it made.
SECONDS = 10.0

Batches = list[tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class Data:
    """The run's batches for a plain model: those to learn from, and those held out."""

    train: Batches
    held: Batches
    tokens: int
    classes: int
    length: int


def teach(model: nn.Module, batches: Batches, loss_of: Callable[[Tensor, Tensor], Tensor]) -> int:
    """PASSES over the batches, within SECONDS; the number of steps that were made."""
    began = time.thread_time()
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=0.01)
    steps = 0
    with torch.enable_grad():
        for x, y in batches * PASSES:
            loss = loss_of(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            steps += 1
            if time.thread_time() - began > SECONDS:
                break
    return steps


class Reference(nn.Module):
    """A small pre-norm transformer with learned positions or none; one answer per place, or per row."""

    def __init__(
        self, tokens: int, classes: int, *, causal: bool, length: int, positions: bool = True
    ) -> None:
        super().__init__()
        self.causal = causal
        self.token = nn.Embedding(tokens, WIDTH)
        self.place = nn.Embedding(length, WIDTH)
        for table in (self.token, self.place):
            nn.init.normal_(table.weight, std=0.1)
        if not positions:
            nn.init.zeros_(self.place.weight).requires_grad_(False)
        layer = nn.TransformerEncoderLayer(
            WIDTH,
            HEADS,
            4 * WIDTH,
            dropout=0.0,
            batch_first=True,
            norm_first=True,
            activation="gelu",
        )
        self.blocks = nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False)
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, classes)

    def forward(self, x: Tensor) -> Tensor:
        T = x.shape[1]
        mask = torch.full((T, T), -torch.inf).triu(1) if self.causal else None
        h = self.blocks(self.token(x) + self.place.weight[:T], mask=mask, is_causal=self.causal)
        scores: Tensor = self.head(self.norm(h))  # (B, T, C)
        return scores


def taught(data: Data, *, causal: bool, positions: bool = True) -> tuple[Reference, int]:
    """A plain model that learned from the run's batches, and its steps."""
    seed_generators(0)  # the random state is given back when the exam ends
    model = Reference(
        data.tokens, data.classes, causal=causal, length=data.length, positions=positions
    )
    return model, teach(model, data.train, cross_entropy)


def held_out(model: Reference, data: Data) -> Tensor:
    """The loss on each batch that was held out."""
    with torch.no_grad():
        return torch.tensor([float(cross_entropy(model(x), y)) for x, y in data.held])


def cross_entropy(scores: Tensor, targets: Tensor) -> Tensor:
    """Targets (B, T), -100 where they do not count; or (B,): the mean over places is the answer."""
    if targets.ndim == 1:
        return losses.cross_entropy(scores.mean(1), targets)
    return losses.cross_entropy(scores[:, : targets.shape[1]].flatten(0, 1), targets.flatten())


def guessing(data: Data) -> float:
    """Cross-entropy on the held-out targets of their frequencies in the others."""
    seen = torch.cat([y.flatten() for _, y in data.train])
    counts = torch.bincount(seen[seen >= 0], minlength=data.classes).float() + 0.5
    logs = (counts / counts.sum()).log()
    asked = torch.cat([y.flatten() for _, y in data.held])
    return float(-logs[asked[asked >= 0]].mean())
