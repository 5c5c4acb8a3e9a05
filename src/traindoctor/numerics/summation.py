"""Three ways to add up a row of numbers in a given dtype, every partial sum rounded to that dtype.

    naive(values)        one after the other
    pairwise(values)     halves added to halves: what torch and numpy do inside
    compensated(values)  one after the other, the rounding errors added up beside (Neumaier)

Rows are (R, V); the sums are (R,) in the dtype of the values, which may be bfloat16.
"""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

# numpy's accumulate rounds each partial sum to the array's dtype and adds strictly in order.
_NUMPY = {torch.float64, torch.float32, torch.float16}


def partial_sums(values: Tensor) -> Tensor:
    """s[k] = round(s[k-1] + x[k]) along the last axis of (R, V)."""
    if values.dtype in _NUMPY:
        return torch.from_numpy(
            np.add.accumulate(values.numpy(), axis=1, dtype=values.numpy().dtype)
        )
    columns = values.t().contiguous()
    sums = torch.empty_like(columns)
    sums[0] = columns[0]
    rows_in, rows_out = columns.unbind(0), sums.unbind(0)
    total = rows_out[0]
    for term, out in zip(rows_in[1:], rows_out[1:]):
        total = torch.add(total, term, out=out)
    return sums.t()


def naive(values: Tensor) -> Tensor:
    """Left to right: the error grows with the number of terms, and a long sum stops growing at all."""
    return partial_sums(values)[:, -1]


def pairwise(values: Tensor) -> Tensor:
    """A tree of depth log2 V: the error grows with the depth."""
    while values.shape[1] > 1:
        V = values.shape[1]
        if V % 2:
            values = torch.cat([values, values.new_zeros(len(values), 1)], dim=1)
        values = values[:, 0::2] + values[:, 1::2]
    return values[:, 0]


def compensated(values: Tensor) -> Tensor:
    """Neumaier: what each addition loses is known exactly; the losses are added up and put back."""
    sums = partial_sums(values)
    before = torch.cat([values.new_zeros(len(values), 1), sums[:, :-1]], dim=1)
    lost = _addition_error(before, values, sums)
    return sums[:, -1] + partial_sums(lost)[:, -1]


def _addition_error(a: Tensor, b: Tensor, total: Tensor) -> Tensor:
    """a + b - total exactly, in the dtype itself (Knuth's two-sum)."""
    b_seen = total - a
    a_seen = total - b_seen
    return (a - a_seen) + (b - b_seen)


METHODS: dict[str, Callable[[Tensor], Tensor]] = {
    "naive": naive,
    "pairwise": pairwise,
    "compensated": compensated,
}
