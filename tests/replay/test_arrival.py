"""What a script does to its gradients by itself is found, and repeated by the replay."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from traindoctor.capture.watch import Watch
from traindoctor.exams.arrival import gradient_arrival
from traindoctor.exams.counterfactual import experiment_clip, experiment_loss_scale

V, D, B, T = 11, 8, 4, 6
Treatment = Callable[[list[nn.Parameter]], None]


def divide(parameters: list[nn.Parameter]) -> None:
    for p in parameters:
        p.grad /= 512  # type: ignore[operator]


def cut(parameters: list[nn.Parameter]) -> None:
    norm = torch.sqrt(sum(p.grad.square().sum() for p in parameters))  # type: ignore[union-attr, arg-type]
    for p in parameters:
        p.grad.mul_(min(1.0, 1e-3 / float(norm)))  # type: ignore[union-attr]


def by_torch(parameters: list[nn.Parameter]) -> None:
    nn.utils.clip_grad_norm_(parameters, 1e-3)


def add_noise(parameters: list[nn.Parameter]) -> None:
    for p in parameters:
        p.grad.add_(0.1 * torch.randn_like(p.grad))  # type: ignore[union-attr, arg-type]


def watched(tmp_path, treat: Treatment | None, steps: int = 60) -> Watch:
    watch = Watch(tmp_path, probes=[])
    watch.attach()
    try:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Embedding(V, D), nn.Linear(D, D), nn.Tanh(), nn.Linear(D, V))
        parameters = list(model.parameters())
        optimizer = torch.optim.SGD(parameters, lr=0.5)
        for _ in range(steps):
            x = torch.randint(V, (B, T))
            loss = F.cross_entropy(model(x).flatten(0, 1), ((3 * x + 1) % V).flatten())
            optimizer.zero_grad()
            loss.backward()
            if treat is not None:
                treat(parameters)
            optimizer.step()
    finally:
        watch.close("done")
    assert watch.faults == []
    return watch


@pytest.mark.parametrize(
    ("treat", "kind", "value"),
    [(None, None, None), (divide, "factor", 1 / 512), (cut, "clip", 1e-3)],
)
def test_division_and_clipping_are_told_from_each_other(tmp_path, treat, kind, value) -> None:
    values = gradient_arrival(watched(tmp_path, treat, steps=4).patient).values
    assert values["by_hand"] == kind
    assert values["value"] == (None if value is None else pytest.approx(value, rel=1e-4))


def test_torchs_own_clipping_and_added_noise_are_neither(tmp_path) -> None:
    assert not gradient_arrival(watched(tmp_path / "a", by_torch, steps=4).patient).done
    assert not gradient_arrival(watched(tmp_path / "b", add_noise, steps=4).patient).done


def test_the_replay_divides_as_the_script_does_and_learns_without(tmp_path) -> None:
    values = experiment_loss_scale(watched(tmp_path, divide).patient).values
    assert values["fidelity"] < 1e-5
    assert values["variants"]["gradients undivided"]["loss"] < values["control"]["loss"] - 0.1


def test_the_replay_clips_as_the_script_does_and_learns_with_a_wider_limit(tmp_path) -> None:
    values = experiment_clip(watched(tmp_path, cut).patient).values
    assert values["fidelity"] < 1e-5
    assert values["variants"]["limit*100"]["loss"] < values["control"]["loss"] - 0.05
