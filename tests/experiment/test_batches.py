"""Where in a step its data were seen: whole, or joined of several tensors."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import Tensor, nn

from single_step import tape_step
from traindoctor.experiment.batches import MOST_PARTS, sources_of
from traindoctor.experiment.snapshot import Source, StepLog
from traindoctor.tape.tape import StepTape

FIRST, SECOND, THIRD = ("batch", 0, 0), ("batch", 0, 1), ("variable", 7, 0)


def taped(data: Tensor) -> StepTape:
    model = nn.Linear(4, 1)
    return tape_step(lambda: model(data).square().mean(), model)


def told(data: Tensor, seen: dict[Source, Tensor]) -> list[tuple[Source, ...]]:
    return list(sources_of(taped(data), StepLog(0, data=seen)).values())


def test_whole_joined_and_unknown() -> None:
    torch.manual_seed(0)
    a, b, other = torch.randn(3, 4), torch.randn(2, 4), torch.randn(2, 4)
    assert told(a, {FIRST: b, SECOND: a}) == [(SECOND,)]
    assert told(torch.cat([a, b]), {FIRST: b, SECOND: a}) == [(SECOND, FIRST)]
    assert told(torch.cat([a, a]), {FIRST: b, SECOND: a}) == [(SECOND, SECOND)]
    assert told(torch.cat([a, other]), {FIRST: b, SECOND: a}) == []
    assert told(a, {}) == []


def test_parts_with_the_same_numbers_have_each_their_turn() -> None:
    ones = torch.ones(3, 4)
    assert told(torch.ones(6, 4), {FIRST: ones, THIRD: ones.clone()}) == [(FIRST, THIRD)]


def test_a_long_row_of_parts_is_not_followed() -> None:
    row = torch.zeros(1, 4)
    assert told(torch.zeros(MOST_PARTS, 4), {FIRST: row}) == [(FIRST,) * MOST_PARTS]
    assert told(torch.zeros(MOST_PARTS + 1, 4), {FIRST: row}) == []


def nested() -> Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.nested.nested_tensor([torch.ones(3, 4), torch.ones(1, 4)], layout=torch.jagged)


@pytest.mark.parametrize(
    "odd",
    [nested, lambda: torch.eye(4).to_sparse(), lambda: torch.empty(3, 4, device="meta")],
    ids=["nested", "sparse", "without data"],
)
def test_what_cannot_be_compared_is_passed_over(odd) -> None:
    data = torch.ones(3, 4)
    assert told(data, {FIRST: odd(), SECOND: data}) == [(SECOND,)]
