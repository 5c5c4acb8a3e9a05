"""A few values of a tensor, evenly spread: enough to see that it moved, or to know it again."""

from __future__ import annotations

from torch import Tensor

from traindoctor.ground.names import local


def some_values(tensor: Tensor, most: int) -> Tensor:
    """About so many of them, of this rank's own part; a copy."""
    flat = local(tensor).detach().flatten()
    return flat[:: max(1, flat.numel() // most)].clone()
