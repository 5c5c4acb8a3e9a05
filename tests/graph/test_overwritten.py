"""Writes that autograd does not notice, between the forward and the backward pass."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from single_step import tape_step
from traindoctor.graph.overwritten import gradients_after, late_writes
from traindoctor.tape.execute import replay


def loss_of(model: nn.Module, *, writes: str) -> Tensor:
    x, y = torch.randn(6, 4), torch.randint(3, (6,))
    scores = model(x)
    probabilities = scores.softmax(-1)
    loss = -probabilities.gather(1, y[:, None]).log().mean()
    metric = {"kept": probabilities.data, "copy": probabilities.detach().clone()}[writes]
    metric.scatter_(1, y[:, None], 0.0)
    return loss


@pytest.mark.parametrize(("writes", "found"), [("kept", ["scatter_"]), ("copy", [])])
def test_a_write_into_what_the_backward_pass_needs(writes: str, found: list[str]) -> None:
    torch.manual_seed(0)
    model = nn.Linear(4, 3)
    tape = tape_step(lambda: loss_of(model, writes=writes), model)
    writes_found = late_writes(tape)
    assert [op.name for op in writes_found] == found
    right = replay(tape, gradients=True).gradients()
    for write in writes_found:
        made = gradients_after(tape, write)
        for name, gradient in tape.fresh.items():
            assert torch.equal(made[name], gradient)
            assert not torch.allclose(right[name], gradient)


def test_writes_after_the_backward_pass_do_no_harm() -> None:
    model = nn.Linear(4, 3)
    kept = []

    def compute() -> Tensor:
        scores = model(torch.ones(2, 4))
        kept.append(scores)
        return F.mse_loss(scores, torch.zeros(2, 3))

    tape = tape_step(compute, model)
    kept[0].data.zero_()
    assert late_writes(tape) == []
