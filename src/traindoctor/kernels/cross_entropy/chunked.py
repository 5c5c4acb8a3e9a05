"""The portable cross-entropy: a few rows at a time through torch's own functions, on any device.

Beside the gradient it needs one chunk of scratch; the rows' arithmetic is kernels/softmax_rows.py.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from traindoctor.kernels.arguments import out_of_range, plain_targets
from traindoctor.kernels.softmax_rows import accumulation_dtype, rows_

# Elements of one chunk. 2 MB of float32 stay in a core's cache over the five passes on a CPU;
# a GPU wants launches that fill it.
CPU_ELEMENTS = 1 << 19
GPU_ELEMENTS = 1 << 26


def chunks(logits: Tensor) -> Iterator[slice]:
    """Slices of rows that make chunks of the wanted size."""
    num_rows, V = logits.shape
    elements = CPU_ELEMENTS if logits.device.type == "cpu" else GPU_ELEMENTS
    step = max(1, elements // max(V, 1))
    for start in range(0, num_rows, step):
        yield slice(start, min(start + step, num_rows))


def _scratch(logits: Tensor) -> Tensor:
    """A copy of a chunk in the dtype of accumulation, ours to overwrite."""
    return torch.empty_like(
        logits, dtype=accumulation_dtype(logits.dtype), memory_format=torch.contiguous_format
    ).copy_(logits)


def forward(
    logits: Tensor, targets: Tensor, *, ignore_index: int, label_smoothing: float, z_loss: float
) -> Tensor:
    """Row losses (N,) in float64, 0 where ignored, of logits (N, V)."""
    N, V = logits.shape
    classes, valid = plain_targets(targets, V, ignore_index)
    losses = torch.empty(N, dtype=torch.float64, device=logits.device)
    for part in chunks(logits):
        losses[part] = rows_(
            _scratch(logits[part]),
            classes[part],
            weights=None,
            label_smoothing=label_smoothing,
            z_loss=z_loss,
        )
    losses.masked_fill_(~valid, 0)
    return losses.masked_fill_(out_of_range(targets, V, ignore_index), torch.nan)


def backward(
    logits: Tensor,
    targets: Tensor,
    weights: Tensor,
    *,
    ignore_index: int,
    label_smoothing: float,
    z_loss: float,
) -> Tensor:
    """Gradient (N, V) of sum(weights * losses) in the logits' dtype."""
    V = logits.shape[1]
    classes, valid = plain_targets(targets, V, ignore_index)
    weights = weights.double().masked_fill(out_of_range(targets, V, ignore_index), torch.nan)
    gradient = torch.empty_like(logits, memory_format=torch.contiguous_format)
    for part in chunks(logits):
        scratch = _scratch(logits[part])
        rows_(
            scratch,
            classes[part],
            weights=weights[part],
            label_smoothing=label_smoothing,
            z_loss=z_loss,
        )
        # An ignored row is 0 whatever its logits hold: 0 * NaN would not be.
        gradient[part] = scratch.masked_fill_(~valid[part].unsqueeze(1), 0)
    return gradient
