"""Statistics that do not follow the weights are seen in copies of a model, and in nothing else."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from operator import methodcaller
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, update_bn

from traindoctor.capture.watch import Watch
from traindoctor.probes.running_statistics import RunningStatistics
from traindoctor.record import open_record

STEPS, EVERY = 40, 10
INPUTS = {1: (8, 4), 2: (8, 4, 5, 5), 3: (8, 4, 3, 3, 3)}


def net(dimensions: int = 2, **settings: Any) -> nn.Module:
    convolution = (nn.Linear, nn.Conv2d, nn.Conv3d)[dimensions - 1]
    norm = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)[dimensions - 1]
    size = () if dimensions == 1 else (1,)
    return nn.Sequential(convolution(4, 6, *size), norm(6, **settings), nn.ReLU())


class ByFunction(nn.Module):
    """BatchNorm as a function, on buffers of the module's own."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 6)
        self.scale, self.shift = nn.Parameter(torch.ones(6)), nn.Parameter(torch.zeros(6))
        self.register_buffer("running_mean", torch.zeros(6))
        self.register_buffer("running_var", torch.ones(6))

    def forward(self, x: Tensor) -> Tensor:
        statistics = self.running_mean, self.running_var
        return F.batch_norm(
            self.layer(x), *statistics, self.scale, self.shift, training=self.training
        ).relu()


def average(copied: nn.Module, model: nn.Module, *, buffers: bool = False) -> None:
    with torch.no_grad():
        for slow, fast in zip(copied.parameters(), model.parameters()):
            slow.lerp_(fast, 0.1)
        if buffers:
            for slow, fast in zip(copied.buffers(), model.buffers()):
                slow.copy_(fast)


def parameters_alone(copied: nn.Module, model: nn.Module) -> None:
    average(copied, model)


def with_buffers(copied: nn.Module, model: nn.Module) -> None:
    average(copied, model, buffers=True)


def nothing(copied: nn.Module, model: nn.Module) -> None:
    pass


def seen(
    tmp_path: Path,
    model: nn.Module,
    follow: Callable[[nn.Module, nn.Module], None] = nothing,
    *,
    dimensions: int = 2,
    copied: nn.Module | None = None,
    copy_at: int = 0,
    train: Callable[[nn.Module], Any] = methodcaller("train"),
    before_evaluation: Callable[[nn.Module], None] | None = None,
    evaluate_at: Callable[[int], bool] = lambda step: step % EVERY == EVERY - 1,
) -> list[dict[str, Any]]:
    """What was seen of a run that evaluates a copy of its model, or the model itself where nothing is copied."""
    watch = Watch(tmp_path, replay=False, probes=[RunningStatistics()], budget=1.0)
    watch.attach()
    try:
        torch.manual_seed(0)
        optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], 0.1)
        for step in range(STEPS):
            if step == copy_at and copied is None and follow is not nothing:
                copied = copy.deepcopy(model)
            train(model)
            optimizer.zero_grad()
            (model(torch.randn(INPUTS[dimensions])) - 1).square().mean().backward()
            optimizer.step()
            if copied is not None:
                follow(copied, model)
            if evaluate_at(step):
                evaluated = model if copied is None else copied
                if before_evaluation is not None:
                    before_evaluation(evaluated)
                evaluated.eval()
                with torch.no_grad():
                    evaluated(torch.randn(INPUTS[dimensions]))
    finally:
        watch.close("done")
    assert watch.faults == []
    facts: list[dict[str, Any]] = open_record(tmp_path).fact("mode.running_statistics", [])
    return facts


@pytest.mark.parametrize("dimensions", [1, 2, 3])
def test_an_average_of_the_parameters_alone(tmp_path: Path, dimensions: int) -> None:
    model = net(dimensions)
    [fact] = seen(tmp_path, model, parameters_alone, dimensions=dimensions)
    assert fact["layers"] == fact["initial"] == fact["kept"] == 1
    assert (fact["model"], fact["where"]) == ("Sequential", "1")
    assert fact["step"] == fact["trained_steps"] == STEPS
    assert fact["kept_since"] == EVERY


def test_a_layer_that_calls_the_function_itself(tmp_path: Path) -> None:
    [fact] = seen(tmp_path, ByFunction(), parameters_alone, dimensions=1)
    assert fact["initial"] == 1
    assert fact["model"] == "ByFunction"


def test_a_layer_without_weights_of_its_own(tmp_path: Path) -> None:
    [fact] = seen(tmp_path, net(affine=False), parameters_alone)
    assert fact["initial"] == fact["kept"] == 1


def test_a_copy_that_was_made_later(tmp_path: Path) -> None:
    """Its statistics are those of the copy, not of the start."""
    [fact] = seen(tmp_path, net(), parameters_alone, copy_at=5)
    assert (fact["initial"], fact["kept"], fact["kept_since"]) == (0, 1, EVERY)


def test_a_single_evaluation_behind_the_last_step(tmp_path: Path) -> None:
    last = STEPS - 1
    [fact] = seen(tmp_path, net(), parameters_alone, evaluate_at=lambda step: step == last)
    assert (fact["initial"], fact["kept"], fact["step"]) == (1, 0, STEPS)


def without(facts: list[dict[str, Any]]) -> bool:
    """None of the layers is named, whether or not any was looked at."""
    return not any(fact["initial"] or fact["kept"] for fact in facts)


@pytest.mark.parametrize("settings", [{}, {"use_buffers": True}])
def test_an_averaged_model_of_torch(tmp_path: Path, settings: dict[str, bool]) -> None:
    """It copies the buffers, or averages them too."""
    model = net()
    averaged = AveragedModel(model, **settings)
    facts = seen(tmp_path, model, lambda _, m: averaged.update_parameters(m), copied=averaged)
    assert facts
    assert without(facts)


def test_statistics_that_are_taken_anew_before_each_evaluation(tmp_path: Path) -> None:
    batches = [torch.randn(INPUTS[2]) for _ in range(3)]
    update = partial(update_bn, batches)
    facts = seen(tmp_path, net(), parameters_alone, before_evaluation=update)
    assert facts
    assert without(facts)


def test_a_copy_with_its_buffers_and_the_model_itself(tmp_path: Path) -> None:
    facts = seen(tmp_path / "copy", net(), with_buffers)
    assert facts
    assert without(facts)
    assert seen(tmp_path / "itself", net()) == []


def test_frozen_on_purpose(tmp_path: Path) -> None:
    """The training pass uses the same statistics, and so does the average."""
    for name, follow in (("itself", nothing), ("average", parameters_alone)):
        assert without(seen(tmp_path / name, net(), follow, train=methodcaller("eval")))


class Partly(nn.Module):
    """A pretrained part whose statistics are frozen, its weights not, beside a new one of the same width."""

    def __init__(self) -> None:
        super().__init__()
        self.pretrained, self.new = net(), nn.Sequential(nn.Conv2d(6, 6, 1), nn.BatchNorm2d(6))
        self.pretrained[1].running_mean += torch.randn(6)

    def forward(self, x: Tensor) -> Tensor:
        return self.new(self.pretrained(x))

    def train(self, mode: bool = True) -> Partly:
        super().train(mode)
        self.pretrained.eval()
        return self


def test_statistics_that_are_frozen_in_part_of_the_model(tmp_path: Path) -> None:
    assert without(seen(tmp_path / "itself", Partly()))
    assert without(seen(tmp_path / "with buffers", Partly(), with_buffers))
    [fact] = seen(tmp_path / "parameters", Partly(), parameters_alone)
    assert (fact["initial"], fact["kept"], fact["where"]) == (1, 0, "new.1")


def test_a_frozen_network_of_random_or_other_weights(tmp_path: Path) -> None:
    """Its statistics belong to its weights: neither changes."""
    for name, other in (("random", net()), ("pretrained", net())):
        if name == "pretrained":
            nn.init.normal_(other[1].weight)
            nn.init.normal_(other[1].bias)
            other[1].running_mean += torch.randn(6)
        assert without(seen(tmp_path / name, net(), copied=other.requires_grad_(False)))


def test_a_copy_of_both_now_and_then(tmp_path: Path) -> None:
    """A target network: it changes as a whole, or not at all."""
    calls = iter(range(STEPS))

    def sometimes(copied: nn.Module, model: nn.Module) -> None:
        if next(calls) % 15 == 14:
            copied.load_state_dict(model.state_dict())

    assert without(seen(tmp_path, net(), sometimes))


def test_a_layer_that_is_never_called(tmp_path: Path) -> None:
    class Spare(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.spare = net(), nn.BatchNorm2d(6)

        def forward(self, x: Tensor) -> Tensor:
            return self.used(x)

    [fact] = seen(tmp_path, Spare(), with_buffers)
    assert fact["layers"] == 2
    assert without([fact])


@pytest.mark.parametrize(
    "norm",
    [
        nn.BatchNorm2d(6, track_running_stats=False),
        nn.InstanceNorm2d(6, affine=True, track_running_stats=True),
        nn.GroupNorm(2, 6),
        nn.LazyBatchNorm2d(),
    ],
    ids=lambda norm: type(norm).__name__,
)
def test_layers_without_such_statistics(tmp_path: Path, norm: nn.Module) -> None:
    model = nn.Sequential(nn.Conv2d(4, 6, 1), norm)
    if isinstance(norm, nn.LazyBatchNorm2d):
        model(torch.randn(INPUTS[2]))
        assert without(seen(tmp_path, model, with_buffers))
    else:
        assert seen(tmp_path, model, parameters_alone) == []


def test_statistics_that_cannot_move_any_more(tmp_path: Path) -> None:
    """All batches alike, first layer: the statistics end at their fixed point while the weights learn on."""

    class Same(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.BatchNorm1d(6, momentum=1.0)
            self.register_buffer("data", torch.randn(8, 6))

        def forward(self, x: Tensor) -> Tensor:
            return self.norm(self.data)

    assert without(seen(tmp_path, Same(), with_buffers, dimensions=1))


def test_evaluations_before_the_training_say_nothing(tmp_path: Path) -> None:
    [fact] = seen(tmp_path, net(), parameters_alone, evaluate_at=lambda step: step == 0)
    assert fact["trained_steps"] == 1


def test_looking_changes_nothing(tmp_path: Path) -> None:
    def run() -> list[Tensor]:
        torch.manual_seed(0)
        model = net()
        copied = copy.deepcopy(model)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        given = []
        for _ in range(6):
            optimizer.zero_grad()
            model(torch.randn(INPUTS[2])).square().mean().backward()
            optimizer.step()
            average(copied, model)
            copied.eval()
            with torch.inference_mode():
                given.append(copied(torch.randn(INPUTS[2])).clone())
        return [*given, *copied.buffers(), torch.get_rng_state()]

    alone = run()
    watch = Watch(tmp_path, replay=False, probes=[RunningStatistics()], budget=1.0)
    watch.attach()
    try:
        watched = run()
    finally:
        watch.close("done")
    assert watch.faults == []
    assert all(torch.equal(one, other) for one, other in zip(alone, watched, strict=True))
