"""Calls of modules cut out of a tape: which ops are theirs, and what they are as functions."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from single_step import tape_step
from traindoctor.errors import ReplayError
from traindoctor.graph.sections import all_calls, as_function, first_calls
from traindoctor.tape.tape import StepTape


class Cube(torch.autograd.Function):
    """Computes out of torch's sight."""

    @staticmethod
    def forward(ctx, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return torch.from_numpy(x.detach().numpy() ** 3)

    @staticmethod
    def backward(ctx, grad: Tensor) -> Tensor:
        return 3 * grad * ctx.saved_tensors[0] ** 2


class Cubed(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return Cube.apply(x)


class Centred(nn.Module):
    """Takes the mean away as a constant."""

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            mean = x.mean()
        return x - mean


class Model(nn.Module):
    """`twice` is called two times, with something of the model's own between."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.first, self.twice, self.inner = nn.Linear(4, 4), nn.Linear(4, 4), inner

    def forward(self, x: Tensor) -> Tensor:
        h = self.twice(self.first(x))
        return self.inner(self.twice(h * 2))


def taped(inner: nn.Module) -> StepTape:
    torch.manual_seed(0)
    model, x = Model(inner), torch.randn(3, 4)
    return tape_step(lambda: model(x).square().mean(), model)


def test_the_first_call_of_each_module_or_every_call() -> None:
    tape = taped(nn.Tanh())
    assert [s.module for s in first_calls(tape)].count("twice") == 1
    every = [section.module for section in all_calls(tape)]
    assert every.count("twice") == 2
    # The largest first: a part that passes speaks for all that lies in it.
    assert every[0] == "(model)"
    assert "(loss)" in every
    first, second = (s for s in all_calls(tape) if s.module == "twice")
    assert not first.numbers & second.numbers


def test_what_runs_out_of_sight_belongs_to_the_module_that_calls_it() -> None:
    sections = {section.module: section for section in all_calls(taped(Cubed()))}
    assert sections["inner"].hand_written == ["Cube"]
    assert sections["(model)"].hand_written == ["Cube"]
    assert sections["first"].hand_written == []
    assert "(script)" not in sections


def test_a_section_is_a_function_of_its_inputs_and_parameters() -> None:
    tape = taped(nn.Tanh())
    [section] = [section for section in first_calls(tape) if section.module == "first"]
    function, values = as_function(tape, section)
    # The batch is the step's own and stays: only weight and bias are left to move.
    assert [tuple(value.shape) for value in values] == [(4, 4), (4,)]
    moved = [values[0], values[1] + 1]
    cotangent = float(function(*moved) - function(*values))
    assert float(function(values[0], values[1] + 2) - function(*values)) == pytest.approx(
        2 * cotangent
    )


def test_values_that_carry_no_gradient_inside_are_no_matter_for_differences() -> None:
    tape = taped(Centred())
    [section] = [section for section in first_calls(tape) if section.module == "inner"]
    with pytest.raises(ReplayError, match="detaches"):
        as_function(tape, section)
