"""Linear layer and cross-entropy together, a chunk of rows at a time: the (N, V) logits never exist.

For each chunk: logits in float32, loss, gradient of the logits written over them, and the two
products that turn it into gradients of hidden and weight. Nothing is computed twice.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from traindoctor.kernels.arguments import out_of_range, plain_targets
from traindoctor.kernels.linear_cross_entropy.products import HALF, PaddedWeight
from traindoctor.kernels.softmax_rows import accumulation_dtype, rows_

# Elements of logits of one chunk. On a CPU 8M float32 (32 MB) are rows enough for the products to
# run at full speed; on a GPU a chunk should have about a thousand rows.
CPU_ELEMENTS = 1 << 23
GPU_ELEMENTS = 1 << 27
# Rows of the chunk that are turned into losses together: 2 MB stay in a core's cache.
CACHE_ELEMENTS = 1 << 19

# (logits (n, columns), classes, row weights or None) -> losses; writes the gradient over the logits
RowFunction = Callable[[Tensor, Tensor, Tensor | None], Tensor]


@dataclass(frozen=True, kw_only=True)
class Gradients:
    """What was asked for; None for the rest."""

    hidden: Tensor | None = None
    weight: Tensor | None = None
    bias: Tensor | None = None


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """Which gradients to compute, and the dtypes they are given back in."""

    hidden: torch.dtype | None = None
    weight: torch.dtype | None = None
    bias: torch.dtype | None = None

    def __bool__(self) -> bool:
        return any((self.hidden, self.weight, self.bias))


def losses_and_gradients(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    targets: Tensor,
    *,
    weights: Tensor | None,
    wanted: Wanted,
    ignore_index: int,
    label_smoothing: float,
    z_loss: float,
) -> tuple[Tensor, Gradients]:
    """Row losses (N,) in float64 and the gradients of sum(weights * losses).

    hidden (N, D) and weight (V, D) share one dtype; `weights` (N,) may be None when nothing is wanted.
    """
    classes, valid = plain_targets(targets, weight.shape[0], ignore_index)
    wrong = out_of_range(targets, weight.shape[0], ignore_index)
    losses = torch.zeros(len(hidden), dtype=torch.float64, device=hidden.device)
    if weights is not None:
        weights = torch.where(valid, weights.double(), 0).masked_fill(wrong, torch.nan)

    def rows(x: Tensor, targets: Tensor, weights: Tensor | None) -> Tensor:
        """The cache-sized pieces of a chunk, one after the other."""
        step = max(1, CACHE_ELEMENTS // x.shape[1]) if x.device.type == "cpu" else len(x)
        parts = [
            rows_(
                x[i : i + step],
                targets[i : i + step],
                weights=None if weights is None else weights[i : i + step],
                label_smoothing=label_smoothing,
                z_loss=z_loss,
            )
            for i in range(0, len(x), step)
        ]
        if weights is not None and keep is None:
            # A row of weight 0 whose logits hold NaN must not reach the others.
            x.masked_fill_((weights == 0).unsqueeze(1), 0)
        return torch.cat(parts)

    # Rows that do not count are left out where counting them costs nothing: a GPU would be waited for.
    keep = valid.nonzero().squeeze(1) if hidden.device.type == "cpu" else None
    if keep is None or len(keep) == len(hidden):
        losses, gradients = over_chunks(hidden, weight, bias, classes, weights, wanted, rows)
        losses.masked_fill_(~valid, 0)
    else:
        kept_losses, gradients = over_chunks(
            hidden[keep],
            weight,
            bias,
            classes[keep],
            None if weights is None else weights[keep],
            wanted,
            rows,
        )
        losses[keep] = kept_losses
        if gradients.hidden is not None:
            full = torch.zeros_like(hidden, dtype=gradients.hidden.dtype)
            full[keep] = gradients.hidden
            gradients = Gradients(hidden=full, weight=gradients.weight, bias=gradients.bias)
    return losses.masked_fill_(wrong, torch.nan), gradients


def over_chunks(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    classes: Tensor,
    weights: Tensor | None,
    wanted: Wanted,
    rows: RowFunction,
) -> tuple[Tensor, Gradients]:
    """The loop: every row counts here (a row's weight may be 0)."""
    N, D = hidden.shape
    V = weight.shape[0]
    dtype = accumulation_dtype(hidden.dtype)
    device = hidden.device
    if device.type == "cpu" and weight.dtype in HALF:
        weight = weight.float()
    padded = PaddedWeight(weight)
    elements = CPU_ELEMENTS if device.type == "cpu" else GPU_ELEMENTS
    step = min(max(N, 1), max(16, elements // padded.columns))
    losses = torch.empty(N, dtype=torch.float64, device=device)
    scratch = torch.empty(step, padded.columns, dtype=dtype, device=device)
    dhidden = torch.empty(N, D, dtype=wanted.hidden, device=device) if wanted.hidden else None
    columns = padded.columns
    dweight = torch.zeros(columns, D, dtype=dtype, device=device) if wanted.weight else None
    dbias = torch.zeros(V, dtype=torch.float64, device=device) if wanted.bias else None
    for start in range(0, N, step):
        part = slice(start, min(start + step, N))
        h = hidden[part].to(weight.dtype)
        logits = scratch[: len(h)]
        padded.logits(h, out=logits)
        if bias is not None:
            logits[:, :V] += bias.to(dtype)
        weight_of_rows = weights[part] if weights is not None and wanted else None
        losses[part] = rows(logits[:, :V], classes[part], weight_of_rows)
        if weight_of_rows is None:
            continue
        if dbias is not None:
            dbias += logits[:, :V].sum(0, dtype=torch.float64)
        dlogits = logits.to(weight.dtype)
        if dhidden is not None:
            dhidden[part] = padded.hidden_gradient(dlogits)
        if dweight is not None:
            padded.add_weight_gradient(dweight, dlogits, h, first=start == 0)
    del scratch
    return losses, Gradients(
        hidden=dhidden,
        weight=None if dweight is None else dweight[:V].to(wanted.weight),
        bias=None if dbias is None else dbias.to(wanted.bias),
    )
