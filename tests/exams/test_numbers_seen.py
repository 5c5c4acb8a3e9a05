"""Predictions that see the number they have to predict, however the model and the loss are written."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from exams.patients import patient_of
from traindoctor.checks.base import Clear, Finding, NotApplicable
from traindoctor.checks.model.causal_mask_leak import causal_mask_leak
from traindoctor.exams.dependence import dependence
from traindoctor.exams.numbers_seen import numbers_seen
from traindoctor.record import make_record

B, T, D = 4, 12, 16
Mix = Callable[[Tensor, Tensor, Tensor, bool], Tensor]


def by_module(q: Tensor, k: Tensor, v: Tensor, hidden: bool) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, is_causal=hidden)


def by_hand(q: Tensor, k: Tensor, v: Tensor, hidden: bool) -> Tensor:
    scores = q @ k.transpose(-1, -2) / math.sqrt(D)
    if hidden:
        scores = scores + torch.full((q.shape[1], q.shape[1]), -torch.inf).triu(1)
    return scores.softmax(-1) @ v


def by_einsum(q: Tensor, k: Tensor, v: Tensor, hidden: bool) -> Tensor:
    weights = torch.exp(torch.einsum("bqd,bkd->bqk", q, k) / D)
    if hidden:
        weights = weights * torch.ones_like(weights).tril()
    return torch.einsum("bqk,bkd->bqd", weights / weights.sum(-1, keepdim=True), v)


class Double(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return 2 * x

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        return 2 * grads[0]


def by_function(q: Tensor, k: Tensor, v: Tensor, hidden: bool) -> Tensor:
    return by_hand(Double.apply(q), k, v, hidden)


MIXES = [by_module, by_hand, by_einsum, by_function]


class Model(nn.Module):
    def __init__(self, mix: Mix, *, hidden: bool = True, inputs: int = 1, outputs: int = 1) -> None:
        super().__init__()
        self.into, self.out = nn.Linear(inputs, D), nn.Linear(D, outputs)
        self.qkv = nn.Linear(D, 3 * D)
        self.mix, self.hidden = mix, hidden
        self.places = nn.Parameter(torch.randn(T, D))

    def body(self, h: Tensor) -> Tensor:
        return h + self.mix(*self.qkv(h).chunk(3, -1), self.hidden)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.body(self.into(x) + self.places[: x.shape[1]]))


def torchs(said: Tensor, wanted: Tensor) -> Tensor:
    return F.mse_loss(said, wanted)


def flattened(said: Tensor, wanted: Tensor) -> Tensor:
    return F.smooth_l1_loss(said.reshape(-1), wanted.reshape(-1))


def squares(said: Tensor, wanted: Tensor) -> Tensor:
    return ((said - wanted) ** 2).mean()


def apart(said: Tensor, wanted: Tensor) -> Tensor:
    return (said - wanted).abs().sum(-1).mean()


def huber(said: Tensor, wanted: Tensor) -> Tensor:
    error = said - wanted
    far = error.abs()
    return torch.where(far < 0.5, 0.5 * error * error, 0.5 * (far - 0.25)).mean()


LOSSES = [torchs, flattened, squares, apart, huber]


def judged(model: nn.Module, loss: Callable[[], Tensor]) -> Any:
    torch.manual_seed(1)
    patient = patient_of(model, loss)
    record = make_record(exams=[dependence(patient), numbers_seen(patient)])
    return causal_mask_leak(record)


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("mix", MIXES)
@pytest.mark.parametrize("hidden", [True, False])
def test_a_series_that_predicts_itself(mix: Mix, loss: Any, hidden: bool) -> None:
    torch.manual_seed(0)
    x = torch.randn(B, T, 1)
    model = Model(mix, hidden=hidden)
    outcome = judged(model, lambda: loss(model(x[:, :-1]), x[:, 1:]))
    if hidden:
        assert isinstance(outcome, Clear)
    else:
        assert isinstance(outcome, Finding)
        assert outcome.status == "confirmed"
        assert outcome.summary.startswith("A prediction sees the value it has to predict")


@pytest.mark.parametrize("hidden", [True, False])
def test_inputs_and_targets_that_were_cut_before(hidden: bool) -> None:
    torch.manual_seed(0)
    x = torch.randn(B, T, 2)
    given, wanted = x[:, :-1].clone(), x[:, 1:, :1].clone()
    model = Model(by_hand, hidden=hidden, inputs=2)
    outcome = judged(model, lambda: F.l1_loss(model(given), wanted))
    assert isinstance(outcome, Clear if hidden else Finding)


def test_a_window_ahead_is_given_to_nobody() -> None:
    torch.manual_seed(0)
    x = torch.randn(B, 2 * T, 1)
    model = Model(by_hand, hidden=False)
    outcome = judged(model, lambda: F.mse_loss(model(x[:, :T]), x[:, T:]))
    assert isinstance(outcome, Clear)


@pytest.mark.parametrize("begin", [0, 3])
def test_an_autoencoder_sees_what_it_makes_again(begin: int) -> None:
    torch.manual_seed(0)
    x = torch.randn(B, T, 3)
    model = Model(by_hand, hidden=False, inputs=3, outputs=3)
    outcome = judged(model, lambda: F.mse_loss(model(x[:, begin:]), x[:, begin:]))
    assert isinstance(outcome, Clear)


def test_masked_places_are_hidden_and_the_others_may_be_seen() -> None:
    torch.manual_seed(0)
    x = torch.randn(B, T, 3)
    mask = torch.rand(B, T, 1) < 0.4
    model = Model(by_hand, hidden=False, inputs=3, outputs=3)
    for only in (True, False):

        def loss(only: bool = only) -> Tensor:
            said, wanted = model(x.masked_fill(mask, 0.0)), x
            if only:
                keep = mask.expand_as(x)
                return F.mse_loss(said[keep], wanted[keep])
            return F.mse_loss(said, wanted)

        assert isinstance(judged(model, loss), Clear | NotApplicable)


class Decisions(Model):
    """State and action of each time as two tokens; the action is read from one of them."""

    def __init__(self, mix: Mix, read: int) -> None:
        super().__init__(mix, inputs=2, outputs=2)
        self.state, self.read = nn.Linear(3, D), read

    def forward(self, states: Tensor, actions: Tensor) -> Tensor:  # type: ignore[override]
        h = torch.stack([self.state(states), self.into(actions)], 2).flatten(1, 2)
        return self.out(self.body(h + self.places[: h.shape[1]])[:, self.read :: 2])


@pytest.mark.parametrize("mix", MIXES)
@pytest.mark.parametrize("read", [0, 1])
@pytest.mark.parametrize("drawn", [False, True], ids=["a batch", "rows of all data"])
def test_actions_read_from_their_own_place(mix: Mix, read: int, drawn: bool) -> None:
    torch.manual_seed(0)
    states, actions = torch.randn(4 * B, T // 2, 3), torch.randn(4 * B, T // 2, 2)
    model, rows = Decisions(mix, read), torch.randperm(4 * B)[:B]

    def loss() -> Tensor:
        if drawn:
            return huber(model(states[rows], actions[rows]), actions[rows])
        return F.mse_loss(model(states[:B], actions[:B]), actions[:B])

    outcome = judged(model, loss)
    if read == 0:
        assert isinstance(outcome, Clear)
    else:
        assert isinstance(outcome, Finding)
        assert outcome.status == "likely"


def test_a_world_model_that_makes_its_observation_again_has_more_to_its_loss() -> None:
    torch.manual_seed(0)
    states, actions = torch.randn(B, T // 2, 3), torch.randn(B, T // 2, 2)
    model = Decisions(by_hand, 1)

    def loss() -> Tensor:
        return (
            F.mse_loss(model(states, actions), actions)
            + 0.1 * model.qkv(model.into(actions)).square().mean()
        )

    assert isinstance(judged(model, loss), Clear)


def test_noise_that_is_laid_over_what_is_asked_for_hides_it() -> None:
    torch.manual_seed(0)
    x, states = torch.randn(B, T // 2, 2), torch.randn(B, T // 2, 3)
    model = Decisions(by_hand, 1)

    def loss() -> Tensor:
        return F.mse_loss(model(states, 0.8 * x + 0.6 * torch.randn_like(x)), x)

    assert isinstance(judged(model, loss), Clear)


def test_a_normalisation_over_the_batch_is_no_mask() -> None:
    """What moves the other examples as well is another cause's."""
    torch.manual_seed(0)
    x, norm = torch.randn(B, T, 1), nn.BatchNorm1d(1)
    model = Model(by_hand)
    outcome = judged(
        model,
        lambda: F.mse_loss(model(norm(x[:, :-1].transpose(1, 2)).transpose(1, 2)), x[:, 1:]),
    )
    assert isinstance(outcome, Clear)
    assert "a normalisation and not the mask" in outcome.by


def test_numbers_of_a_few_places_are_no_row() -> None:
    """Boxes that are matched with those that are wanted: four numbers each, two to an example."""
    torch.manual_seed(0)
    pictures, boxes = torch.randn(B, 12), torch.rand(B, 2, 3)
    net = nn.Linear(12, 6)

    def loss() -> Tensor:
        said = net(pictures).view(B, 2, 3)
        with torch.no_grad():
            order = (said[..., 0] - boxes[..., 0]).abs().argsort(1)
        return (said.gather(1, order[..., None].expand_as(said)) - boxes).abs().sum(-1).mean()

    patient = patient_of(net, loss)
    result = numbers_seen(patient)
    assert result.outcome == "not-applicable"
