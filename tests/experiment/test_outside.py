"""Weights that somebody else than the optimizer changes: found, and told from other changes."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from traindoctor.capture.watch import Watch
from traindoctor.exams.outside import outside_changes
from traindoctor.experiment.outside import uniform_factor


@given(st.floats(0.5, 0.999999), st.sampled_from([torch.float32, torch.bfloat16, torch.float16]))
def test_one_factor_for_all_entries_is_found_whatever_the_dtype(factor: float, dtype) -> None:
    was = torch.randn(500).to(dtype)
    found = uniform_factor(was, was * factor)
    assert found is not None
    assert found == pytest.approx(factor, abs=4 * torch.finfo(dtype).eps)


@pytest.mark.parametrize("change", ["one entry", "a step", "row by row"])
def test_other_changes_are_no_factor(change: str) -> None:
    was = torch.randn(20, 20)
    now = was.clone()
    if change == "one entry":
        now[3, 3] *= 0.9
    elif change == "a step":
        now -= 1e-3 * torch.randn(20, 20)
    else:
        now /= now.norm(dim=1, keepdim=True)
    assert uniform_factor(was.flatten(), now.flatten()) is None


@pytest.mark.parametrize(("factor", "shrunk"), [(None, 0), (0.9, 2)])
def test_the_exam_sees_what_the_script_does_between_steps(tmp_path, factor, shrunk: int) -> None:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4, elementwise_affine=False))
    optimizer = torch.optim.SGD(net.parameters(), 0.01)
    watch = Watch(tmp_path, probes=[])
    watch.attach()
    try:
        for _ in range(6):
            optimizer.zero_grad()
            loss: Tensor = net(torch.randn(8, 4)).square().mean() + net[0](torch.ones(4)).sum()
            loss.backward()
            optimizer.step()
            if factor is not None:
                with torch.no_grad():
                    for p in net.parameters():
                        p.mul_(factor)
        result = outside_changes(watch.patient)
    finally:
        watch.close("done")
    assert result.values["tensors"] == shrunk
    assert result.values["factor"] == pytest.approx(factor or 1.0, rel=1e-6)
    assert (result.values["ratio"] > 1) == bool(shrunk)
