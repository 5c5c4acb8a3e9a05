"""The definition: a linear layer, then cross-entropy."""

from __future__ import annotations

import torch
from torch import Tensor

from traindoctor.kernels.cross_entropy.reference import reference as cross_entropy
from traindoctor.kernels.softmax_rows import accumulation_dtype


def reference(
    hidden: Tensor, weight: Tensor, targets: Tensor, bias: Tensor | None = None, **options: object
) -> Tensor:
    """Cross-entropy of hidden @ weight.T + bias, in float64; hidden (..., D), weight (V, D), targets (...)."""
    logits = torch.nn.functional.linear(
        hidden.double(), weight.double(), None if bias is None else bias.double()
    )  # (..., V)
    loss = cross_entropy(logits, targets, **options)  # type: ignore[arg-type]
    return loss.to(accumulation_dtype(hidden.dtype))
