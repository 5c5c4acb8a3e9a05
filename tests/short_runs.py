"""A plain training loop of a second or less, watched or not, for tests that need the snapshots of a real run."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import nn

from traindoctor.capture.watch import Watch

V, D, T, B = 11, 8, 6, 4
STEPS = 70


class Tiny(nn.Module):
    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.embed = nn.Embedding(V, D)
        self.drop = nn.Dropout(dropout)
        self.mix = nn.Linear(D, D)
        self.head = nn.Linear(D, V)

    def forward(self, x):
        return self.head(torch.tanh(self.mix(self.drop(self.embed(x)))))


def batch(width: int = T):
    x = torch.randint(V, (B, width))
    return x, (3 * x + 1) % V


@torch.no_grad()
def decay_by_hand(model: nn.Module, factor: float | None) -> None:
    for p in model.parameters() if factor is not None else ():
        p.mul_(factor)


def divided(parameters: list[nn.Parameter]) -> None:
    """Gradients divided by hand, on a loss that is a mean already."""
    for p in parameters:
        p.grad /= 512  # type: ignore[operator]


def run(
    tmp_path,
    make: Callable = lambda p: torch.optim.Adam(p, lr=1e-2),
    *,
    steps: int = STEPS,
    dropout: float = 0.0,
    limit: float | None = None,
    micro: int = 1,
    width: Callable[[int], int] = lambda _: T,
    schedule: Callable | None = None,
    loss_of: Callable | None = None,
    shrink: float | None = None,
    shrink_before: float | None = None,
    treat: Callable[[list[nn.Parameter]], None] | None = None,
    replay: bool = True,
    dtype: torch.dtype = torch.float32,
    wide: float = 1.0,
) -> tuple[Watch | None, list[float], nn.Module]:
    """A plain training loop, watched where `replay`; its losses and its model."""
    # A budget that a crowded machine does not use up: what is kept must not hang on the clock.
    watch = Watch(tmp_path, probes=[], budget=1.0) if replay else None
    if watch is not None:
        watch.attach()
    try:
        torch.manual_seed(0)
        model = Tiny(dropout).to(dtype)
        with torch.no_grad():
            model.head.weight.mul_(wide)
            model.embed.weight.mul_(wide)
        optimizer = make(model.parameters())
        planned = schedule(optimizer) if schedule is not None else None
        losses = []
        for k in range(steps):
            optimizer.zero_grad()
            total = 0.0
            for _ in range(micro):
                x, y = batch(width(k))
                logits = model(x)
                if loss_of is not None:
                    loss = loss_of(logits, y)
                else:
                    loss = F.cross_entropy(logits.view(-1, V), y.view(-1))
                loss.backward()
                total += loss.item() / micro
            if limit is not None:
                nn.utils.clip_grad_norm_(model.parameters(), limit)
            if treat is not None:
                treat(list(model.parameters()))
            decay_by_hand(model, shrink_before)
            optimizer.step()
            decay_by_hand(model, shrink)
            if planned is not None:
                planned.step()
            losses.append(total)
    finally:
        if watch is not None:
            watch.close("done")
    if watch is not None:
        assert watch.faults == []
    return watch, losses, model
