"""Norms of gradients that `torch.autograd.grad` gives to a script that moves its weights itself."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from traindoctor.capture.watch import Watch
from traindoctor.probes.gradient_norm import GradientNorm
from traindoctor.record import open_record


@pytest.mark.parametrize("optimizer", [False, True], ids=["by hand", "with an optimizer beside"])
def test_the_gradients_that_are_used_are_measured(tmp_path: Path, optimizer: bool) -> None:
    torch.manual_seed(0)
    weight, x = torch.randn(6, 3, requires_grad=True), torch.randn(8, 6)
    sgd = torch.optim.SGD([weight], 0.1) if optimizer else None
    expected = []
    watch = Watch(tmp_path, probes=[GradientNorm()])
    watch.attach()
    try:
        for _ in range(5):
            loss = (x @ weight).square().mean()
            if sgd is not None:  # a penalty's gradient is none that is stepped
                torch.autograd.grad((x @ weight).sum(), [weight])
                sgd.zero_grad()
                loss.backward()
                expected.append(float(weight.grad.norm()))
                sgd.step()
            else:
                (gradient,) = torch.autograd.grad(loss, [weight])
                expected.append(float(gradient.norm()))
                weight.data.sub_(0.1 * gradient)
    finally:
        watch.close("done")
    seen = open_record(watch.out)["grad.norm"]
    assert len(seen)
    for step, value in zip(seen.steps, seen.values):
        assert value == pytest.approx(expected[int(step)], rel=1e-5)
