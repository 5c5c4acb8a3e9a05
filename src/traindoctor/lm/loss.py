"""The one place where the trainer turns hidden states into a loss."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def next_token_loss(hidden: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
    """Mean cross-entropy, in nats per token, of `hidden @ weight.T` against `targets`.

    hidden (B, T, D), weight (V, D), targets (B, T). The sum is taken in float32 whatever autocast does.
    """
    logits = F.linear(hidden, weight)  # (B, T, V)
    return F.cross_entropy(logits.flatten(0, 1).to(torch.float32), targets.flatten())
