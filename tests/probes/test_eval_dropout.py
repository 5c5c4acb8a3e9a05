"""Dropout in evaluation is seen, and looking at it changes nothing."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import _get_current_function_mode_stack

from traindoctor.capture.watch import Watch
from traindoctor.probes.eval_dropout import EvalDropout
from traindoctor.record import open_record


class Net(nn.Module):
    def __init__(self, how: str) -> None:
        super().__init__()
        self.layer, self.drop, self.how = nn.Linear(4, 4), nn.Dropout(0.2), how

    def forward(self, x: Tensor) -> Tensor:
        h = self.drop(self.layer(x))
        if self.how == "function":
            return F.dropout(h, 0.3)
        if self.how == "attention":
            return F.scaled_dot_product_attention(h[None], h[None], h[None], dropout_p=0.1)[0]
        if self.how == "attention told":
            chance = 0.1 if self.training else 0.0
            return F.scaled_dot_product_attention(h[None], h[None], h[None], dropout_p=chance)[0]
        return F.dropout(h, 0.3, training=self.training)


@pytest.mark.parametrize(
    ("how", "calls"), [("function", 1), ("attention", 1), ("told", 0), ("attention told", 0)]
)
def test_a_function_that_is_not_told_the_mode(tmp_path: Path, how: str, calls: int) -> None:
    watch = Watch(tmp_path, replay=False, probes=[EvalDropout()], budget=1.0)
    watch.attach()
    try:
        torch.manual_seed(0)
        net = Net(how)
        optimizer = torch.optim.SGD(net.parameters(), 0.1)
        for _ in range(4):
            net.train()
            optimizer.zero_grad()
            net(torch.randn(6, 4)).square().mean().backward()
            optimizer.step()
            net.eval()
            with torch.no_grad():
                net(torch.randn(6, 4))
        assert not _get_current_function_mode_stack(), "no mode of ours is left"
    finally:
        watch.close("done")
    assert watch.faults == []
    assert set(open_record(tmp_path)["mode.eval_dropout"].values) == {float(calls)}


def test_a_pass_that_fails_leaves_no_mode_behind(tmp_path: Path) -> None:
    watch = Watch(tmp_path, replay=False, probes=[EvalDropout()], budget=1.0)
    watch.attach()
    try:
        net = Net("told")
        optimizer = torch.optim.SGD(net.parameters(), 0.1)
        net(torch.randn(6, 4)).sum().backward()
        optimizer.step()
        net.eval()
        with torch.no_grad(), pytest.raises(RuntimeError):
            net(torch.randn(6, 5))
    finally:
        watch.close("done")
    assert not _get_current_function_mode_stack()
