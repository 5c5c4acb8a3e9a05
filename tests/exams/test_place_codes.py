"""Codes that do not tell the places of a grid apart, written in four ways; and codes that do."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from grids import CELL, COLUMN, ROW, D, N, T, examined, waves
from patients import tape_steps
from torch import Tensor, nn

from traindoctor.checks.base import Finding, NotApplicable, NotJudged, Outcome
from traindoctor.checks.model.position_missing import position_missing
from traindoctor.exams.place_codes import place_codes
from traindoctor.experiment.patient import Patient
from traindoctor.record import ExamResult, make_record

BOTH = torch.cat([waves(ROW, D // 2), waves(COLUMN, D // 2)], dim=1)
ROWS_TWICE = torch.cat([waves(ROW, D // 2), waves(CELL - COLUMN, D // 2)], dim=1)
BLIND = {
    "sine and cosine": partial(examined, lambda _, h: h + ROWS_TWICE),
    "a learned table by row": partial(
        examined, lambda m, h: h + m.table[ROW], table=torch.randn(N, D)
    ),
    "in place": partial(examined, lambda _, h: h.add_(ROWS_TWICE[None])),
    "something of each place": partial(examined, lambda _, h: h + ROWS_TWICE, dense=True),
    "torch.add of two": partial(
        examined, lambda _, h: torch.add(torch.add(h, waves(ROW, D)), waves(ROW, D) ** 2)
    ),
}
TOLD_APART = {
    "row and column": partial(examined, lambda _, h: h + BOTH),
    "one after the other": partial(
        examined, lambda _, h: h + waves(ROW, D) + waves(COLUMN + 0.5, D)
    ),
    "a learned table": partial(examined, lambda m, h: h + m.table, table=torch.randn(1, T, D)),
    "something of each place": partial(examined, lambda _, h: h + BOTH, dense=True),
    "by their size": partial(
        examined, lambda _, h: (h + ROWS_TWICE) * torch.linspace(1, 2, T)[:, None]
    ),
}


def judged(patient: Patient, losses: tuple[float, ...] = (1.6,) * 20) -> Outcome:
    result = place_codes(patient)
    asked = ExamResult(
        "positions", 0, "not-applicable", {}, "the model does not take rows of tokens"
    )
    return position_missing(make_record({"loss.root": losses}, exams=[asked, result]))


@pytest.mark.parametrize("name", BLIND)
def test_places_with_one_code(name: str) -> None:
    found = judged(BLIND[name]())
    assert isinstance(found, Finding)
    assert found.status == "confirmed"
    assert f"{T} of {T} positions" in found.summary


@pytest.mark.parametrize("name", TOLD_APART)
def test_places_that_are_told_apart(name: str) -> None:
    assert isinstance(judged(TOLD_APART[name]()), NotApplicable)


@pytest.mark.parametrize("dense", [False, True])
@pytest.mark.parametrize("filled", [False, True])
def test_a_table_that_was_never_filled(dense: bool, filled: bool) -> None:
    """One that is trained may start at zero: only the weights of a later step tell."""
    patient = examined(lambda m, h: h + m.table.detach(), dense=dense, table=torch.zeros(T, D))
    early = judged(patient)
    assert isinstance(early, NotJudged)
    assert early.wants == "place_codes"
    patient.current_step = 30
    if filled:
        table = patient.names.tensor("table")
        assert table is not None
        table.data.normal_()
    found = judged(patient)
    if filled:
        assert isinstance(found, NotApplicable)
    else:
        assert isinstance(found, Finding)
        assert "initialise the position table" in found.remedy


def test_a_model_without_codes_is_not_cleared() -> None:
    outcome = judged(examined(lambda m, h: h + m.table, table=torch.randn(D)))
    assert isinstance(outcome, NotJudged)
    assert "no position embedding is added" in outcome.reason


def test_nothing_is_missing_where_nothing_is_left_to_learn() -> None:
    result = place_codes(BLIND["sine and cosine"]())
    asked = ExamResult(
        "positions", 0, "not-applicable", {}, "the model does not take rows of tokens"
    )
    losses = [1.6 * 0.9**step for step in range(60)]
    record = make_record({"loss.root": losses}, exams=[asked, result])
    assert isinstance(position_missing(record), NotApplicable)


@pytest.mark.parametrize(
    "code",
    [
        lambda m, h: h + m.table[: h.shape[0]],
        lambda m, h: torch.add(h, m.table.narrow(0, 0, len(h))),
        lambda _, h: h + waves(torch.arange(len(h)), D)[:, None],
    ],
    ids=["sliced", "narrowed", "a buffer"],
)
def test_a_table_indexed_by_the_example(code: Callable[[nn.Module, Tensor], Tensor]) -> None:
    patient = examined(code, table=torch.randn(20, 1, D))
    patient.current_step = 30
    found = judged(patient)
    assert isinstance(found, Finding)
    assert "indexed along the batch" in found.remedy


@pytest.mark.parametrize(
    "code",
    [
        lambda m, h: h + torch.randn(len(h), 1, D) * m.table,
        lambda m, h: h + h.mean(1, keepdim=True) * m.table,
        lambda m, h: h + torch.tanh(torch.rand(len(h), 1, 1) * m.table),
    ],
    ids=["noise", "of the content", "a time"],
)
def test_what_is_added_to_all_places_of_an_example_is_no_code_of_them(
    code: Callable[[nn.Module, Tensor], Tensor],
) -> None:
    patient = examined(code, table=torch.randn(D))
    patient.current_step = 30
    assert isinstance(judged(patient), NotJudged)


W = 24


class Pieces(nn.Module):
    """A picture cut into patches in one of several ways, one attention, a mean or a token that reads them, a class."""

    def __init__(self, cut: Cut, *, reader: bool = False, code: bool = False) -> None:
        super().__init__()
        self.cut, self.embed, self.qkv = cut, nn.Linear(9, W), nn.Linear(W, 3 * W)
        self.stem, self.head = nn.Conv2d(1, W, 3, stride=3), nn.Linear(W, 5)
        self.reader = nn.Parameter(torch.randn(1, 1, W)) if reader else None
        self.code = nn.Parameter(torch.randn(T, W)) if code else None

    def forward(self, image: Tensor) -> Tensor:
        h = self.cut(self, image)
        h = h if self.code is None else h * self.code
        if self.reader is not None:
            h = torch.cat([self.reader.expand(len(h), -1, -1), h], dim=1)
        q, k, v = self.qkv(h).chunk(3, dim=-1)
        h = h + F.scaled_dot_product_attention(q, k, v)
        return self.head(h.mean(1) if self.reader is None else h[:, 0])


Cut = Callable[[Any, Tensor], Tensor]
CUTS: dict[str, Cut] = {
    "a convolution": lambda m, x: m.stem(x).flatten(2).transpose(1, 2),
    "unfolded": lambda m, x: m.embed(F.unfold(x, 3, stride=3).transpose(1, 2)),
    "reshaped": lambda m, x: m.embed(
        x.reshape(-1, N, 3, N, 3).permute(0, 1, 3, 2, 4).reshape(-1, T, 9)
    ),
    "by einsum": lambda m, x: torch.einsum(
        "bnij,dij->bnd",
        x.reshape(-1, N, 3, N, 3).permute(0, 1, 3, 2, 4).reshape(-1, T, 3, 3),
        m.stem.weight[:, 0],
    ),
}


def of_pictures(model: nn.Module, losses: list[float], optimizers: float = 1.0) -> Outcome:
    torch.manual_seed(0)
    patient = tape_steps(
        model,
        lambda m, batch: F.cross_entropy(m(batch[0]), batch[1]),
        lambda _: (torch.randn(6, 1, 3 * N, 3 * N), torch.randint(5, (6,))),
    )
    patient.current_step = 30
    asked = ExamResult("positions", 0, "not-applicable", {}, "no rows of tokens")
    series = {"loss.root": losses, "optim.objects": [optimizers]}
    return position_missing(make_record(series, exams=[asked, place_codes(patient)]))


def test_a_set_is_not_accused_by_a_loss_that_is_no_measure() -> None:
    """A critic of sets: hinge losses of either sign, or two optimizers in turn."""
    model = Pieces(CUTS["reshaped"])
    torch.manual_seed(0)
    assert not isinstance(of_pictures(model, [0.8, -0.6, 0.7, -0.9] * 5), Finding)
    in_turn = of_pictures(model, [1.6] * 20, optimizers=2.0)
    assert isinstance(in_turn, NotJudged)
    assert "does not show" in in_turn.reason


@pytest.mark.parametrize("reader", [False, True])
@pytest.mark.parametrize("cut", CUTS)
def test_a_bag_of_patches(cut: str, reader: bool) -> None:
    torch.manual_seed(0)
    stuck = of_pictures(Pieces(CUTS[cut], reader=reader), [1.6] * 20)
    assert isinstance(stuck, Finding)
    assert stuck.status == "likely"
    assert f"the {T} patches" in stuck.summary
    for floor in (0.0, 0.75):
        falls = [max(floor, 1.6 * 0.9**step) for step in range(60)]
        learned = of_pictures(Pieces(CUTS[cut], reader=reader), falls)
        assert not isinstance(learned, Finding)
    told_apart = of_pictures(Pieces(CUTS[cut], reader=reader, code=True), [1.6] * 20)
    assert isinstance(told_apart, NotJudged)


HEADS = 4
HALF = D // HEADS // 2
ANGLES = torch.arange(32)[:, None].float() * 10.0 ** -torch.arange(HALF)  # (places, d / 2)


def by_halves(x: Tensor, axis: int) -> Tensor:
    angles = along(x, axis)
    a, b = x.chunk(2, dim=-1)
    cos, sin = angles.cos(), angles.sin()
    return torch.cat([a * cos - b * sin, a * sin + b * cos], dim=-1)


def by_rotate_half(x: Tensor, axis: int) -> Tensor:
    angles = along(x, axis).repeat(1, 1, 1, 2)
    half = torch.cat([-x[..., HALF:], x[..., :HALF]], dim=-1)
    return x.mul(angles.cos()) + torch.multiply(half, angles.sin())


def by_pairs(x: Tensor, axis: int) -> Tensor:
    angles = along(x, axis)
    even, odd = x[..., 0::2], x[..., 1::2]
    turned = (even * angles.cos() - odd * angles.sin(), even * angles.sin() + odd * angles.cos())
    return torch.stack(turned, dim=-1).flatten(-2)


def by_complex_numbers(x: Tensor, axis: int) -> Tensor:
    pairs = torch.view_as_complex(x.float().unflatten(-1, (HALF, 2)).contiguous())
    angles = along(x, axis)
    return torch.view_as_real(pairs * torch.polar(torch.ones_like(angles), angles)).flatten(-2)


def along(x: Tensor, axis: int) -> Tensor:
    """(1, H, 1, d / 2) or (1, 1, T, d / 2) for x of (B, H, T, d)."""
    shape = [1, 1, 1, HALF]
    shape[axis] = x.shape[axis]
    return ANGLES[: x.shape[axis]].view(shape)


class Frames(nn.Module):
    def __init__(self, turn: Callable[[Tensor], Tensor], fused: bool) -> None:
        super().__init__()
        self.embed, self.qkv, self.head = nn.Linear(9, D), nn.Linear(D, 3 * D), nn.Linear(D, 5)
        self.turn, self.fused = turn, fused

    def forward(self, frames: Tensor) -> Tensor:
        h = self.embed(frames)
        q, k, v = self.qkv(h).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        q, k = self.turn(q), self.turn(k)
        if self.fused:
            mixed = F.scaled_dot_product_attention(q, k, v)
        else:
            mixed = ((q @ k.mT) / HALF).softmax(-1) @ v
        return self.head((h + mixed.transpose(1, 2).flatten(-2)).mean(1))


def of_frames(turn: Callable[[Tensor], Tensor], *, fused: bool) -> Patient:
    def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        return F.cross_entropy(model(batch[0]), batch[1])

    torch.manual_seed(0)
    batch = torch.randn(6, T, 9), torch.randint(5, (6,))
    return tape_steps(Frames(turn, fused), loss, lambda _: batch)


TURNS = [by_halves, by_rotate_half, by_pairs, by_complex_numbers]


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("turn", TURNS)
def test_rotary_codes_over_the_heads_tell_no_frames_apart(
    turn: Callable[[Tensor, int], Tensor], fused: bool
) -> None:
    found = judged(of_frames(lambda x: turn(x, 1), fused=fused))
    assert isinstance(found, Finding)
    assert found.status == "confirmed"
    assert "multiplied by position codes" in found.summary


def test_where_the_task_is_learned_without_order_they_are_likely_a_mistake() -> None:
    falling = tuple(1.6 * 0.985**k for k in range(100))
    found = judged(of_frames(lambda x: by_halves(x, 1), fused=True), falling)
    assert isinstance(found, Finding)
    assert found.status == "likely"


def test_a_table_in_front_of_the_places_is_no_code_of_queries_and_keys() -> None:
    """What multiplies the features of a picture before its places are made says nothing of their order."""
    window = torch.rand(T, D)

    class Windowed(Frames):
        def forward(self, frames: Tensor) -> Tensor:
            h = self.embed(frames) * window
            q, k, v = self.qkv(h).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
            mixed = F.scaled_dot_product_attention(q, k, v)
            return self.head((h + mixed.transpose(1, 2).flatten(-2)).mean(1))

    def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        return F.cross_entropy(model(batch[0]), batch[1])

    torch.manual_seed(0)
    batch = torch.randn(6, T, 9), torch.randint(5, (6,))
    patient = tape_steps(Windowed(lambda x: x, True), loss, lambda _: batch)
    assert not isinstance(judged(patient), Finding)


@pytest.mark.parametrize("turn", TURNS)
def test_rotary_codes_over_the_frames_do(turn: Callable[[Tensor, int], Tensor]) -> None:
    assert not isinstance(judged(of_frames(lambda x: turn(x, 2), fused=True)), Finding)


@pytest.mark.parametrize(
    "scale", [torch.tensor(0.5), torch.rand(D // HEADS), torch.rand(HEADS, 1, 1)]
)
def test_a_scale_is_no_code_and_a_set_may_be_meant(scale: Tensor) -> None:
    assert not isinstance(judged(of_frames(lambda x: x * scale, fused=True)), Finding)
