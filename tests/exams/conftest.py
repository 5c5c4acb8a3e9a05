"""A patient made by hand: a small model, its batches and its loss, taped without the runner."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from traindoctor.events import BackwardBegin, BackwardEnd
from traindoctor.replay.names import Names
from traindoctor.replay.patient import Patient
from traindoctor.replay.recorder import StepRecorder

Loss = Callable[[nn.Module, Any], Tensor]
Batches = Callable[[int], Any]
RATE = 0.1


def tape_steps(
    model: nn.Module,
    loss: Loss,
    batches: Batches,
    *,
    steps: int = 1,
    taped: Iterable[int] | None = None,
) -> Patient:
    """Trains `steps` steps by hand (importing torch.optim takes longer than all of it); the first and the last are taped. Batches come before the tape begins."""
    names = Names(model)
    patient = Patient(names=names, model=model)
    wanted = {0, steps - 1} if taped is None else set(taped)
    for step in range(steps):
        batch = batches(step)
        recorder = StepRecorder(step, names) if step in wanted else None
        if recorder is not None:
            recorder.start()
        value = loss(model, batch)
        model.zero_grad()
        if recorder is not None:
            recorder.on(BackwardBegin([value], True, 1.0))
        value.backward()
        if recorder is not None:
            recorder.on(BackwardEnd([value], 0.0))
            patient.add_tape(recorder.finish())
            recorder.close()
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.grad is not None:
                    parameter -= RATE * parameter.grad
    return patient


@pytest.fixture
def examine() -> Callable[..., Patient]:
    """`examine(model, loss, batches, steps=3)` gives a Patient."""
    torch.manual_seed(0)
    return tape_steps
