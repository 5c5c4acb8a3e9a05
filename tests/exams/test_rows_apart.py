"""Attention over the batch in models that take numbers, however the attention is written."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from exams.patients import patient_of
from traindoctor.checks.base import Clear, Finding, NotApplicable, NotJudged, Outcome
from traindoctor.checks.model.attention_blind import attention_blind
from traindoctor.exams.dependence import dependence
from traindoctor.exams.rows_apart import rows_apart
from traindoctor.record import make_record

B, T, PATCH, D, OUT = 6, 5, 4, 16, 3
Mix = Callable[[Tensor, Tensor, Tensor], Tensor]


def by_module(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v)


def by_hand(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (q @ k.transpose(-1, -2) / math.sqrt(D)).softmax(-1) @ v


def by_einsum(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    weights = torch.einsum("bqd,bkd->bqk", q, k).div(4).softmax(-1)
    return torch.einsum("bqk,bkd->bqd", weights, v)


class Halved(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor) -> Tensor:
        return x / 2

    @staticmethod
    def backward(ctx, grad: Tensor) -> Tensor:
        return grad / 2


def by_function(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return by_hand(Halved.apply(q), k, v)


class Heads(nn.Module):
    """Four heads side by side, places in front of the heads in what it gives."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        q, k, v = (x.unflatten(-1, (4, -1)) for x in (q, k, v))
        weights = torch.einsum("bqhd,bkhd->bhqk", q, k).softmax(-1)
        return torch.einsum("bhqk,bkhd->bqhd", weights, v).flatten(2)


MIXES = [by_module, by_hand, by_einsum, by_function, Heads()]


class Forecaster(nn.Module):
    def __init__(self, mix: Mix, *, crossed: bool, both: bool = False) -> None:
        super().__init__()
        self.into, self.qkv, self.out = nn.Linear(PATCH, D), nn.Linear(D, 3 * D), nn.Linear(D, OUT)
        self.mix, self.crossed, self.both = mix, crossed, both

    def attend(self, h: Tensor, *, crossed: bool) -> Tensor:
        q, k, v = self.qkv(h.transpose(0, 1) if crossed else h).chunk(3, -1)
        made = self.mix(q, k, v)
        return h + (made.transpose(0, 1) if crossed else made)

    def forward(self, x: Tensor) -> Tensor:
        h = self.into(x.unfold(1, PATCH, PATCH))
        h = self.attend(h, crossed=self.crossed)
        if self.both:
            h = self.attend(h, crossed=not self.crossed)
        return self.out(h[:, -1])


class Torchs(nn.Module):
    """torch's own layer, with and without `batch_first`."""

    def __init__(self, *, crossed: bool) -> None:
        super().__init__()
        self.into, self.out = nn.Linear(PATCH, D), nn.Linear(D, OUT)
        self.layer = nn.TransformerEncoderLayer(D, 2, 32, 0.0, batch_first=not crossed)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.layer(self.into(x.unfold(1, PATCH, PATCH)))[:, -1])


def judged(model: nn.Module, shape: tuple[int, ...] = (B, T * PATCH)) -> Outcome:
    torch.manual_seed(0)
    x, y = torch.randn(shape), torch.randn(shape[0], OUT)
    patient = patient_of(model, lambda: F.mse_loss(model(x), y))
    return attention_blind(make_record(exams=[dependence(patient), rows_apart(patient)]))


@pytest.mark.parametrize("mix", MIXES, ids=lambda mix: getattr(mix, "__name__", "heads"))
def test_attention_over_the_batch(mix: Mix) -> None:
    found = judged(Forecaster(mix, crossed=True))
    assert isinstance(found, Finding)
    assert found.status == "confirmed"
    assert "examples of the batch" in found.summary
    assert isinstance(judged(Forecaster(mix, crossed=False)), Clear)


def test_torchs_own_layer_without_batch_first() -> None:
    assert isinstance(judged(Torchs(crossed=True)), Finding)
    assert isinstance(judged(Torchs(crossed=False)), Clear)


@pytest.mark.parametrize("crossed", [True, False])
def test_over_examples_on_purpose_and_over_places_as_well(crossed: bool) -> None:
    """Behind an attention over the examples nothing is known of the next one's axes."""
    outcome = judged(Forecaster(by_hand, crossed=crossed, both=True))
    assert isinstance(outcome, NotJudged if crossed else Clear)


def test_as_many_places_as_examples_are_told_apart_by_what_moves() -> None:
    assert isinstance(judged(Forecaster(by_hand, crossed=True), (T, T * PATCH)), Finding)
    assert isinstance(judged(Forecaster(by_hand, crossed=False), (T, T * PATCH)), Clear)


class EachPlace(nn.Module):
    """One number for each place: what is the batch and what the time cannot be told from the lengths."""

    def __init__(self, *, crossed: bool = False) -> None:
        super().__init__()
        self.into, self.out = nn.Linear(2, D), nn.Linear(D, 1)
        self.crossed = crossed

    def forward(self, x: Tensor) -> Tensor:
        h = self.into(x)
        h = h.transpose(0, 1) if self.crossed else h
        h = by_hand(h, h, h)
        return self.out(h.transpose(0, 1) if self.crossed else h)


def test_places_that_are_all_asked_for_are_not_judged() -> None:
    torch.manual_seed(0)
    model, x = EachPlace(), torch.randn(B, T, 2)
    patient = patient_of(model, lambda: F.mse_loss(model(x), x[..., :1].cumsum(1)))
    outcome = attention_blind(make_record(exams=[dependence(patient), rows_apart(patient)]))
    assert isinstance(outcome, NotApplicable | NotJudged)


@pytest.mark.parametrize("crossed", [True, False])
def test_a_loader_tells_how_many_examples_there_are(crossed: bool) -> None:
    torch.manual_seed(0)
    model, x = EachPlace(crossed=crossed), torch.randn(B, T, 2)
    target = x[..., 0].cumsum(1).flatten()
    patient = patient_of(model, lambda: F.mse_loss(model(x).flatten(), target))
    patient.rows_joined = {B}
    outcome = attention_blind(make_record(exams=[dependence(patient), rows_apart(patient)]))
    assert isinstance(outcome, Finding if crossed else Clear)


def test_a_model_without_attention() -> None:
    model = nn.Linear(T, OUT)
    assert isinstance(judged(model, (B, T)), NotApplicable)
