"""RMSNorm by `F.normalize`: its axis is told where a gain per feature says that features were meant."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from small_transformer import D, Model, next_token, text
from torch import Tensor, nn

from traindoctor.checks.base import Clear, Finding
from traindoctor.checks.model.norm_wrong import norm_wrong
from traindoctor.exams.normalisation import normalisation
from traindoctor.experiment.patient import Patient
from traindoctor.record import make_record

Examine = Callable[..., Patient]
B, T, WIDTH = 4, 6, 8


class UnitNorm(nn.Module):
    def __init__(self, dim: int, width: int = D, *, gain: bool = True) -> None:
        super().__init__()
        self.dim, self.scale = dim, math.sqrt(width)
        self.gain = nn.Parameter(torch.ones(width)) if gain else None

    def forward(self, x: Tensor) -> Tensor:
        made = F.normalize(x, dim=self.dim) * self.scale
        return made if self.gain is None else made * self.gain


class Signals(nn.Module):
    """Numbers of shape (B, T, 3) in, one number per place out."""

    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.inp, self.norm, self.out = nn.Linear(3, WIDTH), norm, nn.Linear(WIDTH, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.norm(self.inp(x)))


def signals(step: int) -> Tensor:
    return torch.randn(B, T, 3, generator=torch.Generator().manual_seed(step))


def on_numbers(model: nn.Module, x: Tensor) -> Tensor:
    return F.mse_loss(model(x), x.sum(-1, keepdim=True))


@pytest.mark.parametrize("wrong", [True, False])
def test_in_a_model_of_tokens(examine: Examine, wrong: bool) -> None:
    norm = functools.partial(UnitNorm, 1 if wrong else -1)
    patient = examine(Model(norm=norm, mask="none"), next_token, text)
    result = normalisation(patient)
    assert result.done, result.reason
    assert result.values["norms"][0]["axes"] == (["time"] if wrong else ["feature"])
    assert isinstance(norm_wrong(make_record({}, exams=[result])), Finding if wrong else Clear)


def test_in_a_model_of_numbers(examine: Examine) -> None:
    result = normalisation(examine(Signals(UnitNorm(1, WIDTH)), on_numbers, signals))
    assert result.done, result.reason
    assert isinstance(norm_wrong(make_record({}, exams=[result])), Finding)


@pytest.mark.parametrize(
    "norm", [UnitNorm(-1, WIDTH), UnitNorm(1, T, gain=False), nn.LayerNorm(WIDTH)]
)
def test_unit_vectors_over_time_that_are_meant_so_are_not_judged(
    examine: Examine, norm: nn.Module
) -> None:
    result = normalisation(examine(Signals(norm), on_numbers, signals))
    assert result.outcome == "not-applicable", result.values


class Pooled(nn.Module):
    """Signals of shape (B, 3, T), normalised along an axis and gathered over time for a class."""

    def __init__(self, axis: int) -> None:
        super().__init__()
        self.inp, self.out, self.axis = nn.Conv1d(3, WIDTH, 1), nn.Linear(WIDTH, 5), axis

    def forward(self, x: Tensor) -> Tensor:
        h = self.inp(x)
        h = h - h.mean(self.axis, keepdim=True)
        h = h / torch.sqrt(h.pow(2).mean(self.axis, keepdim=True) + 1e-5)
        return self.out(h.mean(-1))


@pytest.mark.parametrize("over_time", [True, False])
def test_a_mean_over_what_was_normalised_leaves_nothing(examine: Examine, over_time: bool) -> None:
    def loss(model: nn.Module, x: Tensor) -> Tensor:
        return F.cross_entropy(model(x.transpose(1, 2)), torch.arange(B))

    result = normalisation(examine(Pooled(-1 if over_time else 1), loss, signals))
    assert result.done == over_time
    if over_time:
        found = norm_wrong(make_record(exams={"normalisation": result.values}))
        assert isinstance(found, Finding)
        assert found.status == "confirmed"
