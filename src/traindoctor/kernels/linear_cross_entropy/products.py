"""Matrix products with float32 accumulation and float32 results, whatever the operands are.

A product that is rounded to bfloat16 on its way out spoils the loss: a logit of 10 is then off by
0.03, its probability by 3 %. cuBLAS gives float32 from bfloat16 operands at full speed; on a CPU the
operands are widened.
"""

from __future__ import annotations

import torch
from torch import Tensor

HALF = (torch.bfloat16, torch.float16)
# cuBLAS falls to a fifth of its speed where a dimension of a half precision product is no multiple
# of 8 elements (16 bytes); 64 also keeps its tiles whole.
ALIGNMENT = 64


def mm(a: Tensor, b: Tensor, out: Tensor | None = None) -> Tensor:
    """a @ b with a float32 (or float64) result."""
    if a.dtype in HALF:
        if a.is_cuda:
            if out is None:
                return torch.mm(a, b, out_dtype=torch.float32)
            return torch.ops.aten.mm.dtype_out(a, b, torch.float32, out=out)
        a, b = a.float(), b.float()
    return torch.mm(a, b) if out is None else torch.mm(a, b, out=out)


def add_mm_(total: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """total += a @ b in place, in total's dtype; float32 inside the product."""
    if a.dtype in HALF:
        if a.is_cuda and total.dtype == torch.float32:
            return torch.ops.aten.addmm.dtype_out(total, a, b, torch.float32, out=total)
        if not a.is_cuda:
            a, b = a.to(total.dtype), b.to(total.dtype)
    return total.addmm_(a, b)


class PaddedWeight:
    """A weight (V, D) whose products run at full speed for any V, without a padded copy of it.

    The first V - V % 64 rows are used where they lie; the rest are copied into one block of 64 rows,
    zeros below. A chunk of logits then has `columns` >= V columns, of which the last are padding.
    """

    def __init__(self, weight: Tensor) -> None:
        V, D = weight.shape
        self.V = V
        pad = weight.is_cuda and weight.dtype in HALF and V % ALIGNMENT != 0
        self.body = V - V % ALIGNMENT if pad else V
        self.columns = self.body + ALIGNMENT if pad else V
        self.weight = weight
        self.tail: Tensor | None = None
        if pad:
            self.tail = weight.new_zeros(ALIGNMENT, D)
            self.tail[: V - self.body] = weight[self.body :]

    def logits(self, hidden: Tensor, out: Tensor) -> None:
        """out (n, columns) = hidden @ weight.T; padding columns become 0."""
        if self.tail is None:
            mm(hidden, self.weight.t(), out=out)
            return
        if self.body:
            mm(hidden, self.weight[: self.body].t(), out=out[:, : self.body])
        mm(hidden, self.tail.t(), out=out[:, self.body :])

    def hidden_gradient(self, dlogits: Tensor) -> Tensor:
        """dlogits (n, columns) @ weight, in the dtype of accumulation."""
        if self.tail is None:
            return mm(dlogits, self.weight)
        tail = mm(dlogits[:, self.body :], self.tail)
        if not self.body:
            return tail
        return add_mm_(tail, dlogits[:, : self.body], self.weight[: self.body])

    def add_weight_gradient(
        self, total: Tensor, dlogits: Tensor, hidden: Tensor, first: bool
    ) -> None:
        """total (columns, D) += dlogits.T @ hidden; the first call overwrites what total holds."""
        if not first:
            add_mm_(total, dlogits.t(), hidden)
        elif total.dtype == dlogits.dtype:
            torch.mm(dlogits.t(), hidden, out=total)
        else:
            mm(dlogits.t(), hidden, out=total)
