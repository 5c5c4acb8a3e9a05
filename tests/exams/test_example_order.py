"""Predictions stay with their examples, whatever makes them stray and however it is written."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from exams.clouds import (
    CLASSES,
    B,
    Cloud,
    D,
    Gather,
    K,
    N,
    gathered,
    offset_by_hand,
    rows_of_each,
    selected_without_offset,
    without_offset,
)
from exams.patients import patient_of
from traindoctor.checks.base import Finding, Outcome
from traindoctor.checks.model.attention_blind import attention_blind
from traindoctor.exams.dependence import dependence
from traindoctor.exams.example_order import example_order
from traindoctor.exams.rows_apart import rows_apart
from traindoctor.record import ExamResult, make_record


class Folded(nn.Module):
    """Windows of a series; brought back to their series by `back`."""

    def __init__(self, back: Callable[[Tensor], Tensor], norm: bool = False) -> None:
        super().__init__()
        self.into, self.back = nn.Linear(3, D), back
        self.layer = nn.TransformerEncoderLayer(D, 2, 32, 0.1, batch_first=True)
        self.norm = nn.BatchNorm1d(D) if norm else nn.Identity()
        self.out = nn.Linear(D, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        windows = self.into(x).unflatten(1, (2, N // 2)).transpose(0, 1)
        made = self.layer(windows.reshape(-1, N // 2, D)).mean(1)
        return self.out(self.norm(self.back(made).mean(1)))


def right_way_back(made: Tensor) -> Tensor:
    return made.view(2, -1, D).transpose(0, 1)


def viewed_back(made: Tensor) -> Tensor:
    return made.view(-1, 2, D)


class Tagger(nn.Module):
    """A target for each place; the noise of a masked autoencoder is drawn for each example."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, D)
        self.layer = nn.TransformerEncoderLayer(D, 2, 32, 0.1, batch_first=True)
        self.out = nn.Linear(D, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.rand(x.shape) < 0.3
        return self.out(self.layer(self.embed(x.masked_fill(hidden, 10)))).flatten(0, 1)


def asked(model: nn.Module, x: Tensor, targets: int = B) -> ExamResult:
    y = torch.randint(CLASSES, (targets,))
    return example_order(patient_of(model, lambda: F.cross_entropy(model(x), y)))


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


@pytest.mark.parametrize("gather", [offset_by_hand, rows_of_each, gathered])
def test_neighbours_of_ones_own_cloud(gather: Gather) -> None:
    assert asked(Cloud(gather), torch.randn(B, N, 3)).values["strayed"] == 0


@pytest.mark.parametrize("gather", [without_offset, selected_without_offset])
def test_neighbours_of_the_first_cloud(gather: Gather) -> None:
    found = asked(Cloud(gather), torch.randn(B, N, 3))
    assert found.values["strayed"] > 0.5
    assert found.values["examples"] == B
    line = gather.__code__.co_firstlineno + 1
    assert found.values["line"] == f"clouds.py:{line}"


def test_windows_that_are_viewed_for_transposed() -> None:
    x = torch.randn(B, N, 3)
    assert asked(Folded(right_way_back), x).values["strayed"] == 0
    assert asked(Folded(viewed_back), x).values["strayed"] > 0.5


def test_statistics_of_a_batch_know_no_order() -> None:
    assert asked(Folded(right_way_back, norm=True), torch.randn(B, N, 3)).values["strayed"] == 0


def test_what_is_drawn_for_an_example_moves_with_it() -> None:
    found = asked(Tagger(), torch.randint(10, (B, N)), B * N)
    assert found.outcome == "done"
    assert found.values["strayed"] == 0


def test_a_batch_that_stands_second() -> None:
    class Second(Cloud):
        def forward(self, points: Tensor) -> Tensor:
            return super().forward(points.transpose(0, 1))

    assert asked(Second(gathered), torch.randn(N, B, 3)).values["strayed"] == 0


def test_an_answer_for_each_point_is_no_way_out() -> None:
    """Points of a cloud may stand in any order, but they meet: clouds may not."""

    class Each(Cloud):
        def forward(self, points: Tensor) -> Tensor:
            h = self.into(points)
            near = torch.cdist(points, points).topk(K, largest=False).indices
            key, value = self.gather(self.key_value(h), near).chunk(2, -1)
            weights = (self.query(h).unsqueeze(2) * key).sum(-1).softmax(-1)
            return self.out(h + (weights.unsqueeze(-1) * value).sum(2)).flatten(0, 1)

    points = torch.randn(B, N, 3)
    assert asked(Each(offset_by_hand), points, B * N).values["strayed"] == 0
    assert asked(Each(without_offset), points, B * N).values["strayed"] > 0.5


def test_places_that_the_batch_itself_names_are_not_judged() -> None:
    near = torch.randint(N, (B, N, K)) + torch.arange(B)[:, None, None] * N

    class Given(Cloud):
        def forward(self, points: Tensor) -> Tensor:
            h = self.into(points)
            value = without_offset(self.key_value(h), near).softmax(-1)[..., :D]
            weights = (self.query(h).unsqueeze(2) * value).sum(-1).softmax(-1)
            return self.out((weights.unsqueeze(-1) * value).sum((1, 2)))

    assert asked(Given(gathered), torch.randn(B, N, 3)).outcome == "not-applicable"


def judged(gather: Gather, losses: list[float]) -> Outcome:
    x, y = torch.randn(B, N, 3), torch.randint(CLASSES, (B,))
    model = Cloud(gather)
    patient = patient_of(model, lambda: F.cross_entropy(model(x), y))
    exams = [dependence(patient), rows_apart(patient), example_order(patient)]
    return attention_blind(make_record({"loss.token": losses}, exams=exams))


STUCK = [1.1 + 0.01 * (step % 3) for step in range(200)]


def test_a_run_that_does_not_learn_is_told_of_it() -> None:
    outcome = judged(without_offset, STUCK)
    assert isinstance(outcome, Finding)
    assert outcome.status == "likely"
    assert outcome.line is not None
    assert outcome.line.startswith("clouds.py:")


def test_a_run_that_learns_is_not() -> None:
    assert not isinstance(judged(without_offset, [1.1 * 0.97**k for k in range(200)]), Finding)


def test_the_right_neighbours_are_no_reason() -> None:
    assert not isinstance(judged(offset_by_hand, STUCK), Finding)
