"""Lets the tests of this folder import the models and faults that several of them share."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from traindoctor.experiment.patient import Patient

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture
def examine() -> Callable[..., Patient]:
    """`examine(model, loss, batches, steps=3)` gives a Patient."""
    from patients import tape_steps

    torch.manual_seed(0)
    return tape_steps
