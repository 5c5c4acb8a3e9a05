"""The weights of a step, each moved up or down by a little."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from traindoctor.tape.tape import StepTape


def stirred(tape: StepTape, share: float) -> dict[str, Tensor]:
    """By a share of its tensor's size and of 0.1: also those that start at zero."""
    return {
        name: value + sign * share * (value.double().square().mean().sqrt() + 0.1).to(value)
        for name, value, sign in _signs(tape)
    }


def nudged(tape: StepTape) -> dict[str, Tensor]:
    """By one unit in the last place: what sums in another order do to the scores."""
    return {
        name: value * (1 + sign * torch.finfo(value.dtype).eps)
        for name, value, sign in _signs(tape)
    }


def _signs(tape: StepTape) -> Iterator[tuple[str, Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(0)
    for name, leaf in tape.parameters.items():
        value = leaf.value
        sign = torch.randint(0, 2, value.shape, generator=generator).to(value) * 2 - 1
        yield name, value, sign
