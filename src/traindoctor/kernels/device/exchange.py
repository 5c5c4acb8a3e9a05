"""How programs that share a row tell each other what they found in it."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def leave(top, S, part, row, pairs, PARTS: tl.constexpr):
    """A part's maximum and sum, in float32, for the others.

    Both are one word of `pairs` and so arrive together. It is 0 until they do, and never after: a part
    whose maximum is 0 has a sum of at least 1.
    """
    high = top.to(tl.int32, bitcast=True).to(tl.int64) << 32
    low = S.to(tl.float32).to(tl.int32, bitcast=True).to(tl.int64) & 0xFFFFFFFF
    tl.store(pairs + row.to(tl.int64) * PARTS + part, high | low)


@triton.jit
def of_all_parts(row, pairs, PARTS: tl.constexpr, PARTS_BLOCK: tl.constexpr):
    """The parts' maxima (-inf behind the last) and sums; waits until all are there.

    Parts of a row are neighbours in the grid and programs start in the order of the grid, so only the
    last row that has started can lack a part: the rows before it finish and make room.
    """
    index = tl.arange(0, PARTS_BLOCK)
    there = index < PARTS
    at = pairs + row.to(tl.int64) * PARTS + index
    words = tl.load(at, mask=there, other=-1, volatile=True)
    while tl.min((words != 0).to(tl.int32), 0) == 0:
        words = tl.load(at, mask=there, other=-1, volatile=True)
    tops = (words >> 32).to(tl.int32).to(tl.float32, bitcast=True)
    sums = words.to(tl.int32).to(tl.float32, bitcast=True)
    return tl.where(there, tops, float("-inf")), tl.where(there, sums, 0.0)
