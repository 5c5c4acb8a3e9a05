"""Random numbers that a step draws are told from those of earlier steps by the state that they are drawn from."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from traindoctor.capture.watch import Watch
from traindoctor.checks.base import Clear, Finding
from traindoctor.checks.data.batch_not_changing import batch_not_changing
from traindoctor.record import Record, open_record

ROWS = 16
Noise = Callable[[int], Tensor]
one = torch.Generator().manual_seed(5)


def seeded_by_step(step: int) -> Tensor:
    torch.manual_seed(step)
    return torch.randn(ROWS, 4)


def seeded_alike(step: int) -> Tensor:
    torch.manual_seed(3)
    return torch.randn(ROWS, 4)


def new_generator(step: int) -> Tensor:
    return torch.randn((ROWS, 4), generator=torch.Generator().manual_seed(7))


def state_set_back(step: int) -> Tensor:
    torch.set_rng_state(torch.Generator().manual_seed(9).get_state())
    return torch.empty(ROWS, 4).normal_()


def inside_fork(step: int) -> Tensor:
    with torch.random.fork_rng():
        torch.manual_seed(1)
        return torch.rand(ROWS, 4)


def noise_and_a_table(step: int) -> Tensor:
    """A fixed projection that is made anew from its seed: not one number for each example."""
    table = torch.randn((4, 4), generator=torch.Generator().manual_seed(7))
    return torch.randn(ROWS, 4) @ table


SICK = [seeded_alike, new_generator, state_set_back, inside_fork]
SOUND: list[Noise] = [
    lambda _: torch.randn(ROWS, 4),
    lambda _: torch.randn((ROWS, 4), generator=one),
    seeded_by_step,
    lambda _: F.dropout(torch.ones(ROWS, 4), 0.0),  # draws nothing
    noise_and_a_table,
]


def trained(folder: Path, noise: Noise) -> Record:
    """Inputs come from a list: they are new at every step, whatever is drawn."""
    watch = Watch(folder, budget=1.0)
    watch.attach()
    try:
        torch.manual_seed(0)
        data = torch.randn(24, ROWS, 4)
        model = nn.Linear(4, 4)
        optimizer = torch.optim.Adam(model.parameters())
        for step in range(24):
            drawn = noise(step)
            loss = F.mse_loss(model(data[step] + drawn), drawn)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    finally:
        watch.close("done")
    assert watch.faults == []
    return open_record(folder)


@pytest.mark.parametrize("noise", SICK)
def test_numbers_that_are_drawn_again(tmp_path: Path, noise: Noise) -> None:
    record = trained(tmp_path, noise)
    told = record.fact("draws")
    assert told["again"] >= 2
    assert told["draw"]["line"].startswith("test_draws.py:")
    found = batch_not_changing(record)
    assert isinstance(found, Finding)
    assert (found.status, found.line) == ("confirmed", told["draw"]["line"])


@pytest.mark.parametrize("noise", SOUND)
def test_numbers_that_are_drawn_anew(tmp_path: Path, noise: Noise) -> None:
    assert isinstance(batch_not_changing(trained(tmp_path, noise)), Clear)
