"""A run with an optimizer of its own is the same run when it is watched: losses, weights, random states, history."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch

import odd_optimizers
from odd_optimizers import (
    CLOSED,
    Averaged,
    CallsCounter,
    Centralised,
    ClassList,
    Counting,
    Decorated,
    Langevin,
    Lion,
    Lookahead,
    Masters,
    Numpy,
    OwnList,
    Rule,
    Sharpness,
    Stdlib,
)
from short_runs import Tiny, batch
from traindoctor.capture.watch import Watch
from traindoctor.record import open_record

STEPS = 20


class OwnGenerator(Rule):
    def __init__(self, params) -> None:
        super().__init__(params)
        self.noise = torch.Generator().manual_seed(1)

    def step(self, closure=None):
        for group, p in self.pairs():
            p.data.add_(p.grad, alpha=-group["lr"])
            p.data.add_(torch.empty_like(p).normal_(generator=self.noise), alpha=1e-3)


def trained(kind):
    torch.manual_seed(0)
    random.seed(0)
    np.random.seed(0)
    odd_optimizers.CALLS[0] = 0
    odd_optimizers.LOG.clear()
    ClassList.history.clear()
    model = Tiny(dropout=0.1)
    optimizer = kind(model.parameters())
    losses = []
    for _ in range(STEPS):
        x, y = batch()
        loss = torch.nn.functional.cross_entropy(model(x).flatten(0, 1), y.flatten())
        loss.backward()
        if kind is Sharpness:
            optimizer.first_step()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    weights = torch.cat([p.detach().flatten() for p in model.parameters()])
    own = {k: v for k, v in vars(optimizer).items() if isinstance(v, int | list) and k != "mine"}
    own.pop("param_groups")
    return (
        losses,
        weights.numpy().tobytes(),
        torch.get_rng_state().numpy().tobytes(),
        random.random(),
        np.random.rand(),
        repr(own),
        (odd_optimizers.CALLS[0], odd_optimizers.LOG.copy(), len(ClassList.history)),
    )


@pytest.mark.parametrize(
    "kind",
    [
        *(Lookahead, OwnList, Langevin, OwnGenerator, Counting, Masters, Stdlib, Numpy),
        *(Lion, CallsCounter, ClassList, Decorated, Sharpness, Centralised, Averaged),
    ],
)
def test_a_watched_run_is_the_same_run(tmp_path, kind) -> None:
    plain = trained(kind)
    watch = Watch(tmp_path, budget=1.0)
    watch.attach()
    try:
        watched = trained(kind)
    finally:
        watch.detach()
        watch.close("done")
    assert watched == plain
    assert watch.faults == []
    outcomes = {result.outcome for result in open_record(tmp_path).exams("step_accounting")}
    assert outcomes == ({"done"} if kind in CLOSED else {"refused"})
