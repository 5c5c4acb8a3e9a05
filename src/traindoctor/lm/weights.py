"""Weights and moments by name: what a checkpoint holds, and how it comes back into model and optimizer."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from traindoctor.errors import CheckpointError

# AdamW's state: how often it has stepped, and two moments in the shape of the parameter.
STEP, MOMENTS = "step", ("exp_avg", "exp_avg_sq")


class Source(Protocol):
    """Stored tensors, whole or in parts."""

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]: ...

    def fill(self, name: str, target: Tensor) -> None: ...

    def whole(self, name: str) -> Tensor: ...


class WholeFile:
    """The tensors of one safetensors file."""

    def __init__(self, file: Path) -> None:
        self._tensors = load_file(file)
        odd = [name for name, tensor in self._tensors.items() if not tensor.is_floating_point()]
        if odd:
            raise ValueError(f"{odd[0]} is stored as {self._tensors[odd[0]].dtype}, not as floats")

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {name: tuple(tensor.shape) for name, tensor in self._tensors.items()}

    def fill(self, name: str, target: Tensor) -> None:
        with torch.no_grad():
            target.copy_(self._tensors[name])

    def whole(self, name: str) -> Tensor:
        return self._tensors[name]


def model_tensors(model: nn.Module) -> dict[str, Tensor]:
    # named_parameters names a tied weight once, as safetensors wants it.
    return {name: p.detach() for name, p in model.named_parameters()}


def optimizer_tensors(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    names: dict[Tensor, str] = {p: name for name, p in model.named_parameters()}
    return {
        f"{names[p]}|{key}": torch.as_tensor(value)
        for p, values in optimizer.state.items()
        for key, value in values.items()
    }


def num_weights(source: Source) -> int:
    """Numbers in all stored weights; moments have a | in their names."""
    return sum(math.prod(shape) for name, shape in source.shapes.items() if "|" not in name)


def copy_into(model: nn.Module, source: Source) -> None:
    stored = source.shapes
    for name, parameter in model.named_parameters():
        if stored.get(name) != tuple(parameter.shape):
            raise does_not_fit(name)
        source.fill(name, parameter)


def fill_optimizer(model: nn.Module, optimizer: torch.optim.Optimizer, source: Source) -> None:
    """Puts stored moments into an optimizer over the model's parameters; none, if it has not stepped yet."""
    stored = source.shapes
    if not any("|" in name for name in stored):
        return
    names = {p: name for name, p in model.named_parameters()}
    held = [p for group in optimizer.param_groups for p in group["params"]]
    packed = optimizer.state_dict()
    packed["state"] = {
        number: _moments(names[p], p, source, stored) for number, p in enumerate(held)
    }
    optimizer.load_state_dict(packed)


def _moments(
    name: str, parameter: Tensor, source: Source, stored: Mapping[str, tuple[int, ...]]
) -> dict[str, Tensor]:
    if stored.get(f"{name}|{STEP}") != () or any(
        stored.get(f"{name}|{moment}") != tuple(parameter.shape) for moment in MOMENTS
    ):
        raise does_not_fit(f"the optimizer's state of {name}")
    step = source.whole(f"{name}|{STEP}")
    if not (math.isfinite(step) and step >= 0):
        raise does_not_fit(f"the optimizer's step count of {name}")
    moments = {STEP: step}
    for moment in MOMENTS:
        moments[moment] = torch.zeros_like(parameter, requires_grad=False)
        source.fill(f"{name}|{moment}", moments[moment])
    return moments


def does_not_fit(where: str) -> CheckpointError:
    return CheckpointError(
        f"the checkpoint does not fit the model at {where}: it belongs to other settings, "
        "or is damaged; choose another checkpoint, or start a new run"
    )
