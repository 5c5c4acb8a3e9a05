"""Faults that an exam once missed or called by another name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from single_step import tape_step
from traindoctor.exams.gradient_flow import gradient_flow
from traindoctor.exams.padding import padding
from traindoctor.exams.positions import permutation, positions
from traindoctor.exams.printed_loss import printed_loss
from traindoctor.experiment.patient import Patient
from traindoctor.ground.names import Names

V, B, S, T, D = 20, 4, 9, 7, 8


class Block(nn.Module):
    """Self-attention, or attention to `memory`, and an MLP, each with a way around it."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(D, 2, batch_first=True)
        self.mlp = nn.Sequential(nn.Linear(D, 2 * D), nn.GELU(), nn.Linear(2 * D, D))

    def forward(
        self, h: Tensor, memory: Tensor | None = None, mask: Tensor | None = None
    ) -> Tensor:
        memory = h if memory is None else memory
        h = h + self.attention(h, memory, memory, attn_mask=mask, need_weights=False)[0]
        return h + self.mlp(self.cut(h))

    cut: Callable[[Tensor], Tensor] = staticmethod(lambda h: h)


class EncoderDecoder(nn.Module):
    def __init__(self, *, places: bool) -> None:
        super().__init__()
        self.source, self.target = nn.Embedding(V, D), nn.Embedding(V, D)
        self.places = nn.Parameter(torch.randn(S, D)) if places else None
        self.encode, self.decode, self.cross = Block(), Block(), Block()
        self.head = nn.Linear(D, V)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        memory = self.source(source)
        memory = self.encode(memory if self.places is None else memory + self.places)
        mask = torch.triu(torch.ones(T, T, dtype=torch.bool), 1)
        h = self.decode(self.target(target), mask=mask)
        return self.head(self.cross(h, memory))


def taped(loss: Callable[[], Tensor], model: nn.Module) -> Patient:
    patient = Patient(names=Names(model), model=model)
    patient.add_tape(tape_step(loss, model))
    return patient


@pytest.mark.parametrize("places", [True, False])
def test_the_encoder_is_asked_about_order_beside_next_tokens(places: bool) -> None:
    torch.manual_seed(0)
    model = EncoderDecoder(places=places)
    source, ids = torch.randint(V, (B, S)), torch.randint(V, (B, T + 1))

    def loss() -> Tensor:
        scores = model(source, ids[:, :-1])
        return F.cross_entropy(scores.flatten(0, 1), ids[:, 1:].flatten())

    result = positions(taped(loss, model))
    assert result.outcome == "done", result.reason
    [pair] = result.values["pairs"]
    assert (pair["input"], pair["pooled"]) == ("source.weight", False)
    assert (pair["gap"] > 1e-3) is places


class Cut(nn.Module):
    """Two blocks; the first one's MLP works on what `cut` makes of the stream."""

    def __init__(self, cut: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.token = nn.Embedding(V, D)
        self.blocks = nn.ModuleList([Block(), Block()])
        self.blocks[0].cut = cut
        self.head = nn.Linear(D, V)

    def forward(self, x: Tensor) -> Tensor:
        h = self.token(x)
        for block in self.blocks:
            h = block(h)
        return self.head(h)


@pytest.mark.parametrize(
    ("cut", "kind"),
    [
        (lambda h: h.data, ".data"),
        (lambda h: h.detach(), "detach"),
        (lambda h: h, None),
        (lambda h: h + (h.round() - h).detach(), None),
    ],
    ids=["data", "detach", "whole", "straight-through"],
)
def test_a_cut_of_one_path_is_named_and_is_no_other_loss(cut: Any, kind: str | None) -> None:
    torch.manual_seed(0)
    model = Cut(cut)
    x, y = torch.randint(V, (B, T)), torch.randint(V, (B, T))
    patient = taped(lambda: F.cross_entropy(model(x).flatten(0, 1), y.flatten()), model)
    flow = gradient_flow(patient).values
    assert flow["blocked"] == 0
    assert flow.get("partial_kind") == kind
    if kind is not None:
        assert flow["partial"] > 0.01
        assert flow["partial_module"] == "blocks.0"
        assert flow["partial_line"].startswith("test_weak_spots.py:")
    assert printed_loss(patient).values["cosine"] == pytest.approx(1.0, abs=1e-6)


@pytest.mark.parametrize("counted", [True, False])
def test_tails_of_one_or_two_are_padding_too(counted: bool) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(V, D), nn.Linear(D, V))
    ids = torch.randint(1, V, (B, T + 1))
    for row, length in enumerate((0, 1, 2, 2)):
        ids[row, T + 1 - length :] = 0

    def loss() -> Tensor:
        scores, y = model(ids[:, :-1]), ids[:, 1:]
        ignored = -100 if counted else 0
        return F.cross_entropy(scores.flatten(0, 1), y.flatten(), ignore_index=ignored)

    [pair] = padding(taped(loss, model)).values["pairs"]
    assert (pair["token"] == 0) is counted
    assert pair["counted"] == pytest.approx(5 / (B * T) if counted else 0.0)


def test_an_end_of_text_is_no_padding() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(V, D), nn.Linear(D, V))
    ids = torch.randint(1, V, (B, T + 1))
    ids[:2, -1] = 0  # two rows end just there

    def loss() -> Tensor:
        return F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())

    [pair] = padding(taped(loss, model)).values["pairs"]
    assert (pair["token"], pair["counted"]) == (None, 0.0)


def test_a_single_pad_at_the_end_of_a_row_stays_in_its_place() -> None:
    rows = torch.tensor([[5, 6, 7, 0, 0, 0], [8, 9, 5, 6, 7, 0], [9, 8, 7, 6, 5, 3]])
    order, changed = permutation(rows, 0)
    assert changed
    assert order[0, 3:].tolist() == [3, 4, 5]
    assert order[1, 5] == 5
    assert sorted(order[2].tolist()) == list(range(6))


class Detour(nn.Module):
    """Embeddings that go through numpy on their way, or are only looked at there."""

    def __init__(self, *, used: bool) -> None:
        super().__init__()
        self.used = used
        self.embed, self.head = nn.Embedding(V, D), nn.Linear(D, V)

    def forward(self, ids: Tensor) -> Tensor:
        h = self.embed(ids)
        copy = torch.from_numpy(h.detach().numpy() * 1.0)
        return self.head(copy if self.used else h)


@pytest.mark.parametrize("used", [True, False])
def test_values_that_leave_torch_inside_of_the_model(used: bool) -> None:
    model = Detour(used=used)
    ids = torch.randint(V, (B, T + 1))

    def loss() -> Tensor:
        return F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())

    values = gradient_flow(taped(loss, model)).values
    assert values["left"] == (["embed.weight"] if used else [])
    assert values["escapes"][0]["function"] == "numpy"
