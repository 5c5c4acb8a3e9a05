"""The first op that makes a non-finite value is named, from the state kept at the crash."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from crashing_steps import CALM, crash
from torch import Tensor, nn

from traindoctor.capture.watch import Watch
from traindoctor.exams.first_nonfinite import first_nonfinite
from traindoctor.experiment.patient import Patient


def values(patient: Patient) -> dict[str, Any]:
    result = first_nonfinite(patient)
    assert result.outcome == "done", result.reason
    return dict(result.values)


@pytest.mark.parametrize(
    ("kind", "bad", "op", "phase"),
    [
        ("divide", torch.ones(4), "div", "forward"),
        ("exp", torch.full((4,), 200.0), "exp", "forward"),
        ("mask", torch.ones(4), "div", "forward"),
        ("sqrt", torch.zeros(4), "sqrt", "backward"),
        ("skip", torch.zeros(4), "sqrt", "backward"),
    ],
)
def test_the_op_is_named(kind: str, bad: Tensor, op: str, phase: str) -> None:
    found = values(crash(kind, CALM, bad))
    assert found["op"].strip("_").replace("truediv", "div") == op
    assert (found["phase"], found["step"]) == (phase, 2)
    assert found["line"].startswith("crashing_steps.py:")
    assert found["weights_finite"]
    assert found["largest_weight"] == found["largest_weight_at_start"] == 0.5


def test_a_spoiled_gradient_is_counted_where_it_is_spoiled() -> None:
    assert values(crash("skip", CALM, torch.zeros(4)))["count"] == 4


def test_a_finite_run_has_nothing_to_find() -> None:
    patient = crash("divide", CALM, CALM + 1)
    assert patient.crash is None
    assert first_nonfinite(patient).outcome == "not-applicable"


def test_weights_that_are_lost_already_are_said() -> None:
    patient = crash("divide", CALM, torch.ones(4))
    assert patient.crash is not None
    patient.crash.weights_finite = False
    found = values(patient)
    assert found["op"] is None
    assert "weights" in found["reason"]


def test_a_number_of_the_scripts_own_that_changed_since_the_tape(tmp_path: Path) -> None:
    """A temperature that falls from step to step is another number at the crash than on any tape before it."""
    watch = Watch(tmp_path, probes=[])
    watch.attach()
    try:
        torch.manual_seed(0)
        layer = nn.Linear(4, 4)
        optimizer = torch.optim.SGD(layer.parameters(), 1e-4)
        for step in range(8):
            temperature = 1.0 if step < 5 else 1e-3
            scores = layer(torch.randn(6, 4)) / temperature
            loss = -(scores - scores.exp().sum(1, keepdim=True).log()).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        assert watch.faults == []
        found = values(watch.patient)
    finally:
        watch.close("done")
    assert (found["op"], found["step"]) == ("exp", 5)


def test_pairs_that_are_joined_are_followed_into_a_later_stage(tmp_path: Path) -> None:
    """Chosen and rejected answers stand in one batch and are joined on the way; one answer is empty, long after the stage's
    first step was taped."""
    watch = Watch(tmp_path, probes=[], budget=1.0)
    watch.attach()
    try:
        torch.manual_seed(0)
        layer = nn.Linear(4, 4)

        def means(batch: list[Tensor]) -> Tensor:
            values, counts = torch.cat(batch[:2]), torch.cat(batch[2:])
            return (layer(values) * counts).sum(-1) / counts.sum(-1)

        for length in (110, 90):
            optimizer = torch.optim.SGD(layer.parameters(), 1e-4)
            for step in range(length):
                batch = [torch.randn(3, 4), torch.randn(3, 4)]
                batch += [torch.ones(3, 4), torch.ones(3, 4)]
                batch[3][1] = 0.0 if (length, step) == (90, 70) else 1.0
                good, bad = means(batch).chunk(2)
                loss = -torch.nn.functional.logsigmoid(good - bad).mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
        found = values(watch.patient)
    finally:
        watch.close("done")
    assert (found["op"], found["phase"], found["step"]) == ("div", "forward", 180)
