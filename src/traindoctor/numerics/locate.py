"""Where in an input a gradient is wrong: along which axis, from which index on."""

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise

import torch
from torch import Tensor

from traindoctor.numerics.finite_difference import directional_test

# Slabs an axis is cut into for the first look; the border of a wrong region is then found by halving.
SLABS = 16
# So many entries are tested one by one where no slab tells.
ENTRIES = 20


def locate(
    phi: Callable[..., Tensor],
    tensors: Sequence[Tensor],
    gradients: Sequence[Tensor],
    number: int,
    masks: Mapping[str, Tensor] | None = None,
) -> str | None:
    """The pattern of a wrong gradient that is no constant factor, in words; None where none is seen.

    `masks`: regions that have a name, in the shape of the input.
    """
    x, g = tensors[number], gradients[number]
    if x.dim() == 2 and x.shape[0] == x.shape[1] and x.shape[0] > 1:
        flipped = [gradient.T if i == number else gradient for i, gradient in enumerate(gradients)]
        if _outcome(phi, tensors, flipped, number, None) == "pass":
            return "transposed"
    for name, mask in (masks or {}).items():
        inside = _outcome(phi, tensors, gradients, number, mask)
        outside = _outcome(phi, tensors, gradients, number, ~mask)
        if (inside, outside) == ("wrong", "pass"):
            return f"{_what(g[mask])} only where {name}"
        if (inside, outside) == ("pass", "wrong"):
            return f"{_what(g[~mask])} everywhere but where {name}"
    for axis in range(x.dim()):
        said = _along(phi, tensors, gradients, number, axis)
        if said is not None:
            return said
    return _entries(phi, tensors, gradients, number) if g.numel() > 1 else None


def _outcome(
    phi: Callable[..., Tensor],
    tensors: Sequence[Tensor],
    gradients: Sequence[Tensor],
    number: int,
    mask: Tensor | None,
) -> str:
    return directional_test(
        phi, tensors, gradients=gradients, only=number, mask=mask, num_directions=2
    ).outcome


def _along(
    phi: Callable[..., Tensor],
    tensors: Sequence[Tensor],
    gradients: Sequence[Tensor],
    number: int,
    axis: int,
) -> str | None:
    x = tensors[number]
    length = x.shape[axis]
    if length < 2:
        return None

    def wrong(first: int, last: int) -> bool:
        mask = torch.zeros(x.shape, dtype=torch.float64)
        mask.narrow(axis, first, last - first).fill_(1.0)
        return _outcome(phi, tensors, gradients, number, mask) == "wrong"

    edges = sorted({round(i * length / SLABS) for i in range(SLABS + 1)})
    bad = [wrong(a, b) for a, b in pairwise(edges)]
    if all(bad) or not any(bad):
        return None
    slabs = [i for i, is_bad in enumerate(bad) if is_bad]
    begin, end = edges[slabs[0]], edges[slabs[-1] + 1]
    if len(slabs) != slabs[-1] - slabs[0] + 1:
        return f"wrong at some places along axis {axis} ({len(slabs)} of {len(bad)} parts)"
    first = _first(lambda i: wrong(begin, i + 1), begin, edges[slabs[0] + 1] - 1)
    last = _first(lambda i: wrong(end - 1 - i, end), 0, end - edges[slabs[-1]] - 1)
    stop = end - 1 - last
    what = _what(gradients[number].narrow(axis, first, stop - first + 1))
    if stop == length - 1:
        return f"{what} from index {first} on along axis {axis} of {length}"
    if first == 0:
        return f"{what} up to index {stop} along axis {axis} of {length}"
    if first == stop:
        return f"{what} at index {first} only, along axis {axis} of {length}"
    return f"{what} at index {first} to {stop} along axis {axis} of {length}"


def _what(part: Tensor) -> str:
    return "zero" if not bool(part.any()) else "wrong"


def _first(holds: Callable[[int], bool], low: int, high: int) -> int:
    """The first i in low..high for which it holds, by halving; it holds at high."""
    while low < high:
        middle = (low + high) // 2
        if holds(middle):
            high = middle
        else:
            low = middle + 1
    return low


def _entries(
    phi: Callable[..., Tensor], tensors: Sequence[Tensor], gradients: Sequence[Tensor], number: int
) -> str | None:
    """Single entries: which share of them is wrong, and whether those are the zeros of the gradient."""
    x, g = tensors[number], gradients[number]
    generator = torch.Generator().manual_seed(0)
    chosen = torch.randperm(g.numel(), generator=generator)[:ENTRIES]
    wrong = []
    for index in chosen.tolist():
        mask = torch.zeros(g.numel(), dtype=torch.float64)
        mask[index] = 1.0
        wrong.append(_outcome(phi, tensors, gradients, number, mask.reshape(x.shape)) == "wrong")
    if not any(wrong) or all(wrong):
        return None
    values = g.flatten()[chosen]
    bad = torch.tensor(wrong)
    if bool((values[bad] == 0).all()) and not bool((values[~bad] == 0).all()):
        return f"zero at {sum(wrong)} of {len(wrong)} entries where it should not be"
    return f"wrong at {sum(wrong)} of {len(wrong)} entries, scattered (masked positions?)"
