"""What the loop tells while it trains, and to whom."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn


@dataclass(frozen=True)
class Plan:
    """What is known before the first step."""

    parameters: int
    vocab_size: int
    train_tokens: int
    val_tokens: int
    unknown_share: float
    total_steps: int  # 0: until the time is up
    expected_first_loss: float
    peak_bytes: int
    device: str
    precision: str
    first_step: int
    warnings: tuple[str, ...]


@dataclass(frozen=True)
class Progress:
    """The latest steps, a few at a time."""

    step: int
    total_steps: int
    loss: float
    lr: float
    grad_norm: float
    seconds: float
    tokens_per_second: float
    share: float  # of the whole run, from 0 to 1


@dataclass(frozen=True)
class Validation:
    step: int
    loss: float
    best: bool
    sample: str


@dataclass(frozen=True)
class Outcome:
    """How a run ended: `finished`, `interrupted`, `early-stop`."""

    reason: str
    step: int
    seconds: float
    best_loss: float
    best_step: int
    last_loss: float


def _nothing(*_: Any) -> None:
    return None


@dataclass
class Callbacks:
    """What the caller wants to see. `on_ready` gets model and optimizer before the first step:
    this is where a doctor attaches itself. `needs_logits`: it looks at what goes into the loss."""

    on_preparing: Callable[[str, float], None] = _nothing
    on_plan: Callable[[Plan], None] = _nothing
    on_ready: Callable[[nn.Module, torch.optim.Optimizer], None] = _nothing
    on_progress: Callable[[Progress], None] = _nothing
    on_validation: Callable[[Validation], None] = _nothing
    on_interrupt: Callable[[], None] = _nothing
    on_end: Callable[[Outcome], None] = _nothing
    needs_logits: bool = False
