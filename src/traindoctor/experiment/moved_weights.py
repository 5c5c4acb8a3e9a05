"""The weights of a step, each moved up or down by a little, or as they are by now."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from traindoctor.experiment.patient import Patient
    from traindoctor.tape.tape import StepTape


def as_of_now(patient: Patient, tape: StepTape) -> tuple[StepTape, int]:
    """The step with the weights that the run has reached, and at which step that is.

    Where not all of them are there any more (a model that was replaced), the step as it was.
    """
    now = dict(patient.names.parameters())
    leaves = {}
    for name, leaf in tape.parameters.items():
        value = now.get(name)
        if value is None or (value.shape, value.dtype) != (leaf.value.shape, leaf.value.dtype):
            return tape, tape.step
        leaves[name] = dataclasses.replace(leaf, value=value.detach().clone())
    return dataclasses.replace(tape, parameters=leaves), max(tape.step, patient.current_step)


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
