"""What a script does to its gradients by itself is found, and repeated by the replay."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from short_runs import divided, run
from traindoctor.capture.watch import Watch
from traindoctor.exams.arrival import gradient_arrival
from traindoctor.exams.counterfactual import experiment_clip, experiment_loss_scale

Treatment = Callable[[list[nn.Parameter]], None]


def cut(parameters: list[nn.Parameter]) -> None:
    norm = torch.sqrt(sum(p.grad.square().sum() for p in parameters))  # type: ignore[union-attr, arg-type]
    for p in parameters:
        p.grad.mul_(min(1.0, 1e-3 / float(norm)))  # type: ignore[union-attr]


def cut_rows(parameters: list[nn.Parameter]) -> None:
    """Adaptive clipping: each row of a gradient to a share of the norm of that row of the weights."""
    for p in parameters:
        rows = len(p) if p.dim() > 1 else 1
        weights, gradient = p.detach().reshape(rows, -1), p.grad.reshape(rows, -1)  # type: ignore[union-attr]
        limit = 1e-3 * weights.norm(dim=1, keepdim=True).clamp(min=1e-3)
        norm = gradient.norm(dim=1, keepdim=True)
        p.grad.copy_((gradient * (limit / norm.clamp(min=1e-9)).clamp(max=1.0)).view_as(p))  # type: ignore[union-attr]


def by_layer(parameters: list[nn.Parameter]) -> None:
    """A factor of its own for each tensor: no clipping."""
    for k, p in enumerate(parameters):
        p.grad.mul_(0.5**k)  # type: ignore[union-attr]


def by_torch(parameters: list[nn.Parameter]) -> None:
    nn.utils.clip_grad_norm_(parameters, 1e-3)


def add_noise(parameters: list[nn.Parameter]) -> None:
    for p in parameters:
        p.grad.add_(0.1 * torch.randn_like(p.grad))  # type: ignore[union-attr, arg-type]


def watched(tmp_path, treat: Treatment | None, steps: int = 60) -> Watch:
    watch, _, _ = run(tmp_path, lambda p: torch.optim.SGD(p, lr=0.5), treat=treat, steps=steps)
    assert watch is not None
    return watch


@pytest.mark.parametrize(
    ("treat", "kind", "value"),
    [(None, None, None), (divided, "factor", 1 / 512), (cut, "clip", 1e-3)],
)
def test_division_and_clipping_are_told_from_each_other(tmp_path, treat, kind, value) -> None:
    values = gradient_arrival(watched(tmp_path, treat, steps=4).patient).values
    assert values["by_hand"] == kind
    assert values["value"] == (None if value is None else pytest.approx(value, rel=1e-4))


def test_a_limit_of_torchs_that_never_bites_hides_nothing(tmp_path) -> None:
    def both(parameters: list[nn.Parameter]) -> None:
        divided(parameters)
        nn.utils.clip_grad_norm_(parameters, 5.0)

    values = gradient_arrival(watched(tmp_path, both, steps=4).patient).values
    assert (values["by_hand"], values["value"]) == ("factor", pytest.approx(1 / 512))


def test_torchs_own_clipping_and_added_noise_are_neither(tmp_path) -> None:
    for name, treat in (("a", by_torch), ("b", add_noise)):
        values = gradient_arrival(watched(tmp_path / name, treat, steps=4).patient).values
        assert values["by_hand"] is None
        assert values["factors"] == []
    assert not gradient_arrival(watched(tmp_path / "c", None, steps=1).patient).done, "asked again"


def test_the_replay_divides_as_the_script_does_and_learns_without(tmp_path) -> None:
    values = experiment_loss_scale(watched(tmp_path, divided).patient).values
    assert values["fidelity"] < 1e-5
    assert values["variants"]["gradients undivided"]["loss"] < values["control"]["loss"] - 0.1


def test_the_replay_clips_as_the_script_does_and_learns_with_a_wider_limit(tmp_path) -> None:
    values = experiment_clip(watched(tmp_path, cut).patient).values
    assert values["fidelity"] < 1e-5
    assert values["variants"]["limit*100"]["loss"] < values["control"]["loss"] - 0.05


def test_a_limit_for_each_row_is_found_and_repeated(tmp_path) -> None:
    patient = watched(tmp_path, cut_rows).patient
    values = gradient_arrival(patient).values
    assert values["by_hand"] == "unit clip"
    assert values["norm"] > 30 * values["value"]
    trial = experiment_clip(patient).values
    assert trial["fidelity"] < 1e-3
    assert trial["variants"]["limit*100"]["loss"] < trial["control"]["loss"] - 0.05


def test_a_factor_for_each_tensor_is_no_limit(tmp_path) -> None:
    values = gradient_arrival(watched(tmp_path, by_layer, steps=6).patient).values
    assert values["by_hand"] is None


@pytest.mark.parametrize("order", ["given", "sorted"])
def test_gradients_that_are_given_to_other_parameters(tmp_path, order: str) -> None:
    """`torch.autograd.grad` in the order of registration, written back in another order."""
    watch = Watch(tmp_path, probes=[])
    watch.attach()
    try:
        torch.manual_seed(0)
        model = nn.ModuleDict({name: nn.Linear(6, 6, bias=False) for name in ("q", "k", "out")})
        named = dict(model.named_parameters())
        names = list(named) if order == "given" else sorted(named)
        optimizer = torch.optim.SGD(named.values(), 0.1)
        for _ in range(3):
            x = torch.randn(5, 6)
            loss = model["out"](torch.tanh(model["q"](x)) * model["k"](x)).square().mean()
            for name, g in zip(names, torch.autograd.grad(loss, list(named.values()))):
                named[name].grad = g
            nn.utils.clip_grad_norm_(named.values(), 0.01)
            optimizer.step()
        swapped = gradient_arrival(watch.patient).values["swapped"]
    finally:
        watch.close("done")
    assert len(swapped) == (3 if order == "sorted" else 0)
    assert set(swapped) == set(swapped.values())
    assert all(name != other for name, other in swapped.items())
