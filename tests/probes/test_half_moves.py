"""Half weights that a script steps by itself: kept remainders are told from lost ones by how often weights move."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from odd_optimizers import Foreach, Langevin
from traindoctor.capture.watch import Watch
from traindoctor.probes.half_moves import FIRST, STEPS, HalfMoves, moves_of
from traindoctor.record import open_record

WEIGHTS, LENGTH = 4000, 6e-5


def rounded(start: Tensor, updates: list[Tensor]) -> list[Tensor]:
    """Every update by itself."""
    rows = [start]
    for update in updates:
        rows.append((rows[-1].float() + update).to(start.dtype))
    return rows


def master(start: Tensor, updates: list[Tensor]) -> list[Tensor]:
    copy, rows = start.float(), [start]
    for update in updates:
        copy = copy + update
        rows.append(copy.to(start.dtype))
    return rows


def stochastic(start: Tensor, updates: list[Tensor]) -> list[Tensor]:
    """Rounded up or down by chance: the bits that bfloat16 cuts off, plus a random number, carry over."""
    rows = [start]
    for update in updates:
        bits = (rows[-1].float() + update).view(torch.int32)
        bits = bits + torch.randint(0, 1 << 16, bits.shape, dtype=torch.int32)
        rows.append((bits & -65536).view(torch.float32).to(start.dtype))
    return rows


@pytest.mark.parametrize("noisy", [True, False])
@pytest.mark.parametrize(("keep", "kept"), [(rounded, 0), (master, 1), (stochastic, 1)])
def test_how_often_weights_move_tells_whether_remainders_are_kept(keep, kept, noisy) -> None:
    """Updates of one sign, and updates without any memory: the slowest way out of a cell of the grid."""
    torch.manual_seed(0)
    start = (0.2 * torch.rand(WEIGHTS) - 0.1).bfloat16()
    sign = torch.randn(WEIGHTS).sign()
    updates = [
        LENGTH * (torch.randn(WEIGHTS) if noisy else sign * torch.rand(WEIGHTS))
        for _ in range(FIRST + STEPS)
    ]
    rows = keep(start, updates)[FIRST:]
    found = moves_of(rows, [torch.ones(WEIGHTS, dtype=torch.bool)] * len(rows))
    assert found.expected > 1000
    assert found.unmoved > 0.5 * found.entries
    share = found.observed / found.expected
    assert share < 0.1 if not kept else 0.6 < share < 1.5


def by_hand(model: nn.Module, passes: int) -> Callable[[], None]:
    def train() -> None:
        for k in range(70 * passes):
            model(torch.randn(8, 64).bfloat16()).float().square().mean().backward()
            if (k + 1) % passes == 0:
                for p in model.parameters():
                    assert p.grad is not None
                    p.data.sub_(1e-4 * p.grad.sign())
                    p.grad = None

    return train


def watched(folder: Path, train: Callable[[], None]):
    watch = Watch(folder, replay=False, probes=[HalfMoves()], budget=1.0)
    watch.attach()
    try:
        train()
    finally:
        watch.close("done")
    assert watch.faults == []
    return open_record(folder).fact("weights.half_moves")


@pytest.mark.parametrize("passes", [1, 2])
def test_a_run_with_half_weights_and_no_optimizer_is_measured(tmp_path, passes: int) -> None:
    torch.manual_seed(0)
    fact = watched(tmp_path, by_hand(nn.Linear(64, 64).bfloat16(), passes))
    assert fact["steps"] == STEPS
    assert fact["expected"] > 50
    assert fact["observed"] < 0.1 * fact["expected"]


def test_silent_with_float32_weights_and_with_an_optimizer_of_torch(tmp_path) -> None:
    torch.manual_seed(0)
    single = nn.Linear(64, 64)

    def plain() -> None:
        for _ in range(70):
            single(torch.randn(8, 64)).square().mean().backward()

    half = nn.Linear(64, 64).bfloat16()
    optimizer = torch.optim.SGD(half.parameters(), 1e-3)

    def with_optimizer() -> None:
        for _ in range(70):
            half(torch.randn(8, 64).bfloat16()).float().square().mean().backward()
            optimizer.step()

    assert watched(tmp_path / "single", plain) is None
    assert watched(tmp_path / "optimizer", with_optimizer) is None


@pytest.mark.parametrize("kind", [Foreach, Langevin])
def test_an_optimizer_without_a_rule_is_measured_by_its_moves(tmp_path, kind) -> None:
    torch.manual_seed(0)
    half = nn.Linear(64, 64).bfloat16()
    optimizer = kind(half.parameters(), lr=2e-3)

    def train() -> None:
        for _ in range(FIRST + STEPS + 5):
            half(torch.randn(8, 64).bfloat16()).float().square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()

    assert watched(tmp_path, train)["steps"] == STEPS
