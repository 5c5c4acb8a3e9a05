"""Reads from the device, and the idle time behind them: on events that are played, and on a GPU where there is one."""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from traindoctor.capture.watch import Watch
from traindoctor.checks.base import Clear, Finding
from traindoctor.checks.speed.sync_every_step import sync_every_step
from traindoctor.events import BackwardBegin, ForwardBegin, ScalarRead, StepBegin
from traindoctor.probes import sync
from traindoctor.record import open_record

# The first steps hold our own measurements (24 of them measure everything once); the rest is ten times as long.
STEPS = 240


class Clock:
    """Stands for the device's clock: an event is the time at which it was queued."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = self.ours = 0.0
        monkeypatch.setattr(sync, "marked", self.mark)
        monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)

    def mark(self) -> Any:
        at = self.now
        event = SimpleNamespace(
            at=at,
            query=lambda: True,
            synchronize=lambda: None,
            elapsed_time=lambda end: 1e3 * (end.at - at),
        )
        return sync.Mark(event, self.ours)


class Lines:
    """Stands for the record."""

    def __init__(self) -> None:
        self.written: list[tuple[str, int, float]] = []

    def scalar(self, name: str, step: int, value: float) -> None:
        self.written.append((name, step, value))

    def of(self, name: str) -> list[tuple[int, float]]:
        return [(step, value) for series, step, value in self.written if series == name]


def a_read() -> ScalarRead:
    return ScalarRead(SimpleNamespace(is_cuda=True), 1.0)  # type: ignore[arg-type]


def forward() -> ForwardBegin:
    return ForwardBegin(nn.Identity(), (), {}, True, True)


def test_idle_is_from_the_read_to_the_next_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, lines, probe = Clock(monkeypatch), Lines(), sync.Sync()
    probe.on(a_read(), due=True)
    clock.now = 0.25
    probe.on(BackwardBegin([], True, 1.0), due=True)
    clock.now = 9.0
    probe.on(forward(), due=True)  # nothing was read in between
    probe.close_step(0, lines, due=True)  # type: ignore[arg-type]
    assert lines.of("sync.reads") == [(0, 1)]
    assert lines.of("sync.idle") == [(0, pytest.approx(0.25))]


def test_reads_one_after_the_other_and_before_and_after_the_step_add_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock, lines, probe = Clock(monkeypatch), Lines(), sync.Sync()
    for now in (0.0, 0.1, 0.2):  # the norm of each tensor
        clock.now = now
        probe.on(a_read(), due=True)
    clock.now = 0.3
    probe.on(StepBegin(torch.optim.SGD([torch.ones(1)]), 0), due=True)
    clock.now = 1.0  # the optimizer's work
    probe.on(a_read(), due=True)
    clock.now = 1.5
    probe.on(BackwardBegin([], True, 1.0), due=True)
    probe.close_step(0, lines, due=True)  # type: ignore[arg-type]
    assert lines.of("sync.reads") == [(0, 4)]
    assert lines.of("sync.idle") == [(0, pytest.approx(0.3 + 0.5))]


def test_our_work_between_two_steps_is_no_idleness_of_the_scripts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock, lines, probe = Clock(monkeypatch), Lines(), sync.Sync()
    probe.on(a_read(), due=True)
    clock.now = 0.25  # the script dawdles; its next pass closes the step
    probe.close_step(0, lines, due=True)  # type: ignore[arg-type]
    clock.now = 5.0  # exams, flushes
    probe.opened()
    clock.now = 5.5
    probe.on(forward(), due=True)
    probe.finish(lines)  # type: ignore[arg-type]
    assert lines.of("sync.idle") == [(1, pytest.approx(0.25 + 0.5))]


def test_our_work_inside_a_gap_is_taken_off(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, lines, probe = Clock(monkeypatch), Lines(), sync.Sync()
    probe.on(a_read(), due=True)
    clock.now, clock.ours = 0.7, 0.5  # the loss is looked at by other probes
    probe.on(BackwardBegin([], True, 1.0), due=True)
    probe.close_step(0, lines, due=True)  # type: ignore[arg-type]
    assert lines.of("sync.idle") == [(0, pytest.approx(0.2))]


def train_on_gpu(*, read_every: int) -> None:
    """Work for the device that the host is ahead of; behind each read the host dawdles."""
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(1024, 1024) for _ in range(8))).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    x = torch.randn(8192, 1024, device="cuda")
    for step in range(STEPS):
        loss = model(x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % read_every == 0:
            loss.item()
            time.sleep(0.02)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize(("read_every", "outcome"), [(1, Finding), (50, Clear)])
def test_a_read_in_every_step_is_named_on_a_gpu(
    tmp_path: Path, read_every: int, outcome: type
) -> None:
    watch = Watch(tmp_path)
    watch.attach()
    try:
        train_on_gpu(read_every=read_every)
    finally:
        watch.close(0)
    found = sync_every_step(open_record(tmp_path))
    assert isinstance(found, outcome), found
