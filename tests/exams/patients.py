"""Patients made by hand: a model and its loss, taped without the runner."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from single_step import tape_step
from traindoctor.events import BackwardBegin, BackwardEnd
from traindoctor.experiment.patient import Patient
from traindoctor.ground.names import Names
from traindoctor.tape.recorder import StepRecorder

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


def patient_of(model: nn.Module, *steps: Any) -> Patient:
    """One tape per step; a step is a loss function or a list of them (micro-batches)."""
    patient = Patient(names=Names(model), model=model)
    for number, step in enumerate(steps):
        patient.add_tape(tape_step(step, model, step=number))
    return patient
