"""The same tensors at every step: the whole data set, or a batch taken once from more?"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from traindoctor.events import ForwardBegin
from traindoctor.probes.held_batch import PART, STEPS, HeldBatch
from traindoctor.record import RecordWriter, open_record

MODEL = torch.nn.Linear(1, 1)


def held(folder: Path, give: Callable[[int], Tensor], steps: int = STEPS) -> Any:
    probe, writer = HeldBatch(), RecordWriter(folder)
    for step in range(steps):
        probe.on(ForwardBegin(MODEL, (give(step),), {}, True, True), due=True)
        probe.close_step(step, writer, due=True)
    writer.close()
    return open_record(folder).fact("batch.held")


@pytest.fixture
def text() -> Tensor:
    return torch.randint(0, 50, (20_000,), generator=torch.Generator().manual_seed(0))


def windows(text: Tensor) -> Tensor:
    return torch.stack([text[start : start + 16] for start in (3, 500, 1200, 9000)])


def test_a_whole_table_and_a_view_of_it_are_held(tmp_path: Path) -> None:
    table = torch.cartesian_prod(torch.arange(16), torch.arange(16))
    assert held(tmp_path / "whole", lambda _: table) == {"since": 0, "times": None}
    assert held(tmp_path / "view", lambda _: table[:, :1]) == {"since": 0, "times": None}


def test_windows_taken_once_from_a_text(tmp_path: Path, text: Tensor) -> None:
    batch = windows(text)
    assert held(tmp_path, lambda _: batch)["times"] == pytest.approx(len(text) / batch.numel())


def test_rows_of_a_table_taken_once(tmp_path: Path) -> None:
    table = torch.randn(40 * PART, 3)
    few, half = table[torch.arange(0, 40, 2)], table[: 20 * PART].clone()
    assert held(tmp_path / "few", lambda _: few)["times"] == pytest.approx(2 * PART)
    # What is left may be held out: no batch.
    assert held(tmp_path / "half", lambda _: half)["times"] is None


def test_a_batch_made_anew_or_written_over_is_held_by_its_numbers(
    tmp_path: Path, text: Tensor
) -> None:
    batch, times = windows(text), pytest.approx(len(text) / 64)
    assert held(tmp_path / "anew", lambda _: windows(text), 20)["times"] == times
    assert held(tmp_path / "over", lambda _: batch.copy_(windows(text)), 20)["times"] == times
    assert held(tmp_path / "short", lambda _: batch, STEPS - 1) is None
    other = [windows(text.roll(step)) for step in range(20)]
    assert held(tmp_path / "new", lambda step: other[step], 20) is None


def test_a_training_split_cut_anew_in_any_order_is_all_there_is(tmp_path: Path) -> None:
    table = torch.cartesian_prod(torch.arange(16), torch.arange(16))
    generator = torch.Generator().manual_seed(1)
    split = torch.randperm(256, generator=generator)[:150]
    cut = held(tmp_path / "cut", lambda _: table[split])
    assert cut == {"since": 0, "times": None}
    dealt = held(
        tmp_path / "dealt", lambda _: table[split[torch.randperm(150, generator=generator)]]
    )
    assert dealt == {"since": 0, "times": None}


def test_places_at_which_derivatives_are_taken_are_data(tmp_path: Path) -> None:
    places = torch.linspace(0, 5, 120, dtype=torch.float64).unsqueeze(1).requires_grad_()
    assert held(tmp_path, lambda _: places) == {"since": 0, "times": None}
