"""The definition: a linear layer, then cross-entropy."""

from __future__ import annotations

import torch
from torch import Tensor

from traindoctor.kernels.cross_entropy.reference import reference as cross_entropy


def reference(
    hidden: Tensor, weight: Tensor, targets: Tensor, bias: Tensor | None = None, **options: object
) -> Tensor:
    """Cross-entropy of hidden @ weight.T + bias; hidden (..., D), weight (V, D), targets (...)."""
    logits = torch.nn.functional.linear(hidden, weight, bias)  # (..., V)
    return cross_entropy(logits, targets, **options)  # type: ignore[arg-type]
