"""A step that differentiates on its way to the loss: penalties on gradients, forces, a model that learns to learn."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from single_step import tape_step
from traindoctor.errors import ReplayError
from traindoctor.exams.tape_gradient import tape_gradient
from traindoctor.experiment.patient import Patient
from traindoctor.tape.execute import evaluate, replay
from traindoctor.tape.tape import StepTape


def penalty(model: nn.Module) -> Tensor:
    """Of a critic, between real rows and made ones."""
    torch.manual_seed(1)
    real, made, share = torch.randn(8, 5), torch.randn(8, 5), torch.rand(8, 1)
    between = (share * real + (1 - share) * made).requires_grad_(True)
    (slope,) = torch.autograd.grad(model(between).sum(), between, create_graph=True)
    return model(made).mean() - model(real).mean() + 10 * (slope.norm(dim=1) - 1).square().mean()


def penalty_at_the_data(model: nn.Module) -> Tensor:
    torch.manual_seed(1)
    real = torch.randn(8, 5).requires_grad_()
    out = model(real)
    slope = torch.autograd.grad(out, [real], torch.ones_like(out), True, True)[0]
    return F.softplus(-out).mean() + 5 * slope.square().sum(1).mean()


def forces(model: nn.Module) -> Tensor:
    torch.manual_seed(1)
    places, wanted = torch.randn(8, 5), torch.randn(8, 5)
    places = places.detach().requires_grad_(True)
    energy = model(torch.sin(places))
    force = -torch.autograd.grad(energy.sum(), places, create_graph=True)[0]
    return F.mse_loss(force, wanted) + 0.1 * energy.square().mean()


def curvature(model: nn.Module) -> Tensor:
    """An equation with a second derivative."""
    torch.manual_seed(1)
    x = torch.rand(8, 5, requires_grad=True)
    y = model(x)
    first = torch.autograd.grad(y.sum(), x, create_graph=True)[0]
    second = torch.autograd.grad(first.sum(), x, create_graph=True)[0]
    return (second.sum(1, keepdim=True) + y).square().mean()


def learning_to_learn(model: nn.Module) -> Tensor:
    torch.manual_seed(1)
    x, y = torch.randn(8, 5), torch.randn(8, 1)
    start = model(x).mean() * torch.ones(5)
    fast = torch.autograd.grad(((x @ start)[:, None] - y).square().mean(), start, create_graph=True)
    return ((x @ (start - 0.1 * fast[0]))[:, None] - y).square().mean()


STEPS: list[Callable[[nn.Module], Tensor]] = [
    penalty,
    penalty_at_the_data,
    forces,
    curvature,
    learning_to_learn,
]


def critic(activation: nn.Module | None = None) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 16), activation or nn.Tanh(), nn.Linear(16, 1))


def taped(step: Callable[[nn.Module], Tensor], model: nn.Module) -> StepTape:
    return tape_step(lambda: step(model), model)


@pytest.mark.parametrize("step", STEPS)
def test_it_comes_again_bit_for_bit(step: Callable[[nn.Module], Tensor]) -> None:
    model = critic()
    tape = taped(step, model)
    assert not tape.gaps
    again = replay(tape, gradients=True)
    assert float(again.loss.detach()) == tape.roots[0].value
    for name, gradient in again.gradients().items():
        given = tape.given[name]
        assert gradient is not None
        assert given is not None
        assert torch.equal(gradient, given)


@pytest.mark.parametrize("step", STEPS)
def test_values_alone_carry_no_graph(step: Callable[[nn.Module], Tensor]) -> None:
    tape = taped(step, critic())
    root = tape.roots[0].ref
    assert root is not None
    value = evaluate(tape, root)
    assert float(value) == tape.roots[0].value
    assert not value.requires_grad


@pytest.mark.parametrize("step", STEPS)
def test_its_derivative_is_that_of_its_values(step: Callable[[nn.Module], Tensor]) -> None:
    """In float64, along a direction drawn at random: other weights change the slopes with everything else."""
    tape = taped(step, critic())
    exact = replay(tape, dtype=torch.float64, gradients=True).gradients()
    generator = torch.Generator().manual_seed(2)
    ways = {
        name: torch.randn(leaf.value.shape, generator=generator, dtype=torch.float64)
        for name, leaf in tape.parameters.items()
    }

    def loss_at(length: float) -> float:
        moved = {n: leaf.value.double() + length * ways[n] for n, leaf in tape.parameters.items()}
        return float(replay(tape, dtype=torch.float64, parameters=moved).loss)

    numeric = (loss_at(1e-5) - loss_at(-1e-5)) / 2e-5
    told = sum(float((exact[name] * way).sum()) for name, way in ways.items())
    assert told == pytest.approx(numeric, rel=1e-6, abs=1e-9)


class Squashed(torch.autograd.Function):
    """tanh; its backward forgets that it is differentiated again: it takes the result as a number."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        y = torch.tanh(x)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (y,) = ctx.saved_tensors
        return gradient * (1 - y.detach().square())


class Squash(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return Squashed.apply(x)


def exam_of(model: nn.Module) -> Any:
    patient = Patient()
    patient.tapes[0] = taped(forces, model)
    return tape_gradient(patient)


def test_a_backward_pass_that_cannot_be_differentiated_is_found() -> None:
    sound, sick = exam_of(critic()), exam_of(critic(Squash()))
    assert sound.outcome == sick.outcome == "done"
    assert sound.values["difference"] < 1e-4
    assert sick.values["difference"] > 0.05


def test_a_model_that_is_built_while_it_is_taped_is_told() -> None:
    def step() -> Tensor:
        return penalty(critic())

    assert tape_step(step).gaps[0] == "the model was built in the step"


def test_what_a_mask_is_made_by_is_not_looked_into() -> None:
    """Under `torch.func` tensors have no memory; what comes out of it is data, unless it is the loss."""
    model = nn.Linear(6, 6)

    def seen(row: Tensor, column: Tensor) -> Tensor:
        return column <= row

    def masked() -> Tensor:
        places = torch.arange(6)
        mask = torch.vmap(torch.vmap(seen, in_dims=(None, 0)), in_dims=(0, None))(places, places)
        scores = model(torch.eye(6)).masked_fill(~mask, -1e9)
        return scores.log_softmax(-1).diagonal().mean()

    tape = tape_step(masked, model)
    assert not tape.gaps
    assert float(replay(tape).loss) == tape.roots[0].value

    def under_it() -> Tensor:
        rows = torch.randn(8, 6)
        return torch.vmap(lambda row: (model(row) - row).square().mean())(rows).mean()

    with pytest.raises(ReplayError, match=r"computed under torch\.func"):
        tape_step(under_it, model)
