"""Norms of gradients that `torch.autograd.grad` gives to a script that moves its weights itself."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from traindoctor.events import BackwardEnd, StepBegin
from traindoctor.ground.names import Names
from traindoctor.probes.gradient_norm import GradientNorm
from traindoctor.record import RecordWriter, open_record


@pytest.mark.parametrize("stepped", [False, True], ids=["by hand", "by an optimizer"])
def test_the_gradients_that_are_used_are_measured(tmp_path: Path, stepped: bool) -> None:
    weight, given = torch.randn(6, 3, requires_grad=True), torch.randn(6, 3)
    weight.grad = torch.randn(6, 3) if stepped else None
    probe, writer = GradientNorm(), RecordWriter(tmp_path)
    probe.names = Names()
    probe.names.add_tensors([weight])
    try:
        for step in range(3):
            # Beside an optimizer it is a penalty's gradient, which nobody steps.
            probe.on(BackwardEnd([], 0.0, [weight], [given]), due=True)
            if stepped:
                probe.on(StepBegin(torch.optim.SGD([weight], 0.1), step), due=True)
            probe.close_step(step, writer, due=True)
    finally:
        writer.close()
    used = weight.grad if weight.grad is not None else given
    assert open_record(tmp_path)["grad.norm"].values == pytest.approx([float(used.norm())] * 3)
