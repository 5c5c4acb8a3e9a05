"""The portable cross-entropy: a few rows at a time through torch's own functions, on any device.

Beside the gradient it needs one chunk of scratch; the rows' arithmetic is kernels/softmax_rows.py.
Exponentials are most of the time on a CPU: with the gradient made beside the loss there is one for
each logit, where log_softmax and its gradient take two.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from traindoctor.kernels.arguments import out_of_range, plain_targets
from traindoctor.kernels.softmax_rows import accumulation_dtype, rows_

# Elements of one chunk. 4 MB of float32 stay in a CPU's cache over the passes, and are rows enough for the work
# on whole rows not to count (half as many: a tenth slower at V = 50257 on x86); a GPU wants launches that fill it.
CPU_ELEMENTS = 1 << 20
GPU_ELEMENTS = 1 << 26


def chunks(logits: Tensor) -> Iterator[slice]:
    """Slices of rows that make chunks of the wanted size."""
    num_rows, V = logits.shape
    elements = CPU_ELEMENTS if logits.device.type == "cpu" else GPU_ELEMENTS
    step = max(1, elements // max(V, 1))
    for start in range(0, num_rows, step):
        yield slice(start, min(start + step, num_rows))


def losses_and_gradient(
    logits: Tensor,
    targets: Tensor,
    weights: Tensor | None,
    *,
    ignore_index: int,
    label_smoothing: float,
    z_loss: float,
) -> tuple[Tensor, Tensor | None]:
    """Row losses (N,) in float64, 0 where ignored, of logits (N, V).

    With `weights` (N,) also the gradient (N, V) of sum(weights * losses) in the logits' dtype.
    """
    N, V = logits.shape
    classes, valid = plain_targets(targets, V, ignore_index)
    wrong = out_of_range(targets, V, ignore_index)
    losses = torch.empty(N, dtype=torch.float64, device=logits.device)
    gradient = None
    if weights is not None:
        weights = weights.double().masked_fill(wrong, torch.nan)
        gradient = torch.empty_like(logits, memory_format=torch.contiguous_format)
    dtype = accumulation_dtype(logits.dtype)
    scratch: Tensor | None = None
    for part in chunks(logits):
        rows = logits[part]
        if gradient is not None and gradient.dtype == dtype:
            x = gradient[part].copy_(rows)
        else:
            if scratch is None:
                scratch = torch.empty(rows.shape, dtype=dtype, device=logits.device)
            x = scratch[: len(rows)].copy_(rows)
        losses[part] = rows_(
            x,
            classes[part],
            weights=None if weights is None else weights[part],
            label_smoothing=label_smoothing,
            z_loss=z_loss,
        )
        if gradient is not None:
            _clear_ignored(x, valid[part])
            if gradient.dtype != dtype:
                gradient[part] = x
    losses.masked_fill_(~valid, 0)
    return losses.masked_fill_(wrong, torch.nan), gradient


def _clear_ignored(x: Tensor, valid: Tensor) -> None:
    """An ignored row is 0 whatever its logits hold: 0 * NaN would not be."""
    if x.device.type == "cpu":
        x.index_fill_(0, (~valid).nonzero().squeeze(1), 0)
    else:
        # counting the ignored rows would mean waiting for the device
        x.masked_fill_(~valid.unsqueeze(1), 0)
