"""Whom the run trains: known as long as the script has it, held only where that is cheap."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
from torch import nn

from traindoctor.capture.subjects import Subjects
from traindoctor.experiment.patient import Patient


def met(width: int = 8) -> tuple[nn.Module, torch.optim.Optimizer]:
    model = nn.Linear(width, width)
    return model, torch.optim.Adam(model.parameters())


def both(subjects: Subjects, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    subjects.meet_module(model)
    subjects.meet_optimizer(optimizer)


def test_what_is_large_goes_when_the_script_lets_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("traindoctor.ground.memory.memory.limit", 1000)
    patient = Patient()
    model, optimizer = met(64)
    both(Subjects(patient), model, optimizer)
    assert patient.model is model
    assert list(patient.optimizers) == [optimizer]
    gone = weakref.ref(model), weakref.ref(optimizer)
    del model, optimizer
    gc.collect()
    assert [one() for one in gone] == [None, None]
    assert patient.model_is_gone
    assert not list(patient.optimizers)


def test_what_is_small_stays_until_the_next_one_comes() -> None:
    patient = Patient()
    subjects = Subjects(patient)
    model, optimizer = met()
    both(subjects, model, optimizer)
    gone = weakref.ref(model), weakref.ref(optimizer)
    del model, optimizer
    gc.collect()
    assert None not in [one() for one in gone]
    both(subjects, *met())
    gc.collect()
    assert [one() for one in gone] == [None, None]
