"""Backward passes written by hand, right or with a planted error: a loss as a Function, an operator in a model."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from patients import patient_of
from torch import Tensor, library, nn

from traindoctor.experiment.patient import Patient

# Rows, classes and features of the loss; tokens and features of the model.
N, C, D = 12, 6, 5
VOCABULARY, WIDTH = 7, 6


class Loss(torch.autograd.Function):
    """Mean cross-entropy; `fault` plants an error into backward."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, targets: Tensor, fault: str) -> Tensor:
        top = logits.max(-1, keepdim=True).values
        total = torch.zeros(len(logits), dtype=logits.dtype)
        for column in range(C):
            total += (logits[:, column] - top[:, 0]).exp()
        log_sum = top[:, 0] + total.log()
        ctx.save_for_backward(logits, targets, log_sum)
        ctx.fault = fault
        return (log_sum - logits.gather(1, targets[:, None])[:, 0]).mean()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        logits, targets, log_sum = ctx.saved_tensors
        found = (logits - log_sum[:, None]).exp()
        found[torch.arange(N), targets] -= 1
        found = found * grad / (1 if ctx.fault == "no mean" else N)
        if ctx.fault == "tile":
            found[:, 4:] = 0
        return found, None, None


@library.custom_op("traindoctor_tests::square", mutates_args=())
def square(x: Tensor, factor: float) -> Tensor:
    """An operator as an extension registers it; its backward is `factor` times the right one."""
    return x * x


def _setup(ctx: Any, inputs: tuple[Tensor, float], output: Tensor) -> None:
    ctx.save_for_backward(inputs[0])
    ctx.factor = inputs[1]


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
    return ctx.factor * 2 * grad * ctx.saved_tensors[0], None


square.register_autograd(_backward, setup_context=_setup)


class Squared(nn.Module):
    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, x: Tensor) -> Tensor:
        return square(x, self.factor)


class Model(nn.Module):
    """An embedding with padding, attention, normalisation, MLP, and a registered operator in between."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.token = nn.Embedding(VOCABULARY, WIDTH, padding_idx=0)
        self.block = nn.TransformerEncoderLayer(WIDTH, 2, 2 * WIDTH, 0.1, batch_first=True)
        self.squared, self.head = Squared(factor), nn.Linear(WIDTH, VOCABULARY)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.squared(self.block(self.token(x))))


def operator_patient(factor: float) -> Patient:
    torch.manual_seed(0)
    model, x = Model(factor), torch.randint(VOCABULARY, (4, 5))
    return patient_of(model, lambda: F.cross_entropy(model(x).flatten(0, 1), x.flatten()))


TILE = 4


class TiledSquare(torch.autograd.Function):
    """A square whose backward works in tiles of four columns and forgets what is left over; `seen` by torch or not."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, seen: bool) -> Tensor:
        ctx.save_for_backward(x)
        return x * x if seen else torch.from_numpy(x.detach().numpy() ** 2)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        found = 2 * grad * ctx.saved_tensors[0]
        found[..., found.shape[-1] // TILE * TILE :] = 0
        return found, None


class Square(nn.Module):
    def __init__(self, *, seen: bool) -> None:
        super().__init__()
        self.seen = seen

    def forward(self, x: Tensor) -> Tensor:
        return TiledSquare.apply(x, self.seen)


class Block(nn.Module):
    """The square lies two modules deep: in `mix`, in the block."""

    def __init__(self, width: int, *, seen: bool) -> None:
        super().__init__()
        inner = (nn.Linear(WIDTH, width), Square(seen=seen), nn.Linear(width, WIDTH))
        self.norm, self.mix = nn.LayerNorm(WIDTH), nn.Sequential(*inner)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.mix(self.norm(x))


def nested_patient(*widths: int, seen: bool = False) -> Patient:
    """A block per width; a width that is no multiple of the tile makes the backward of its square wrong."""
    torch.manual_seed(0)
    blocks = [Block(width, seen=seen) for width in widths]
    model = nn.Sequential(
        nn.Embedding(VOCABULARY, WIDTH), nn.Sequential(*blocks), nn.Linear(WIDTH, VOCABULARY)
    )
    x = torch.randint(VOCABULARY, (4, 5))
    return patient_of(model, lambda: F.cross_entropy(model(x).flatten(0, 1), x.flatten()))
