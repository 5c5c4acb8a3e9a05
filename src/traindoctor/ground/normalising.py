"""Layers of a model that normalise by running statistics, with the weights that these belong to, and what both were at one moment."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice

import numpy as np
import torch
from torch import Tensor, nn

from traindoctor.ground.names import clean, has_values, local

# A layer without weights of its own has those beside it: the first tensors of the module around it.
BESIDE = 4
# Values of each tensor that are compared: statistics and weights that change, change everywhere.
SLICE = 256


@dataclass(frozen=True)
class Layer:
    """A layer that keeps running statistics."""

    module: nn.Module
    statistics: tuple[Tensor, Tensor]
    weights: tuple[Tensor, ...]
    own: bool
    """Its weights are its own, and not those beside it."""

    @property
    def width(self) -> int:
        return self.statistics[0].numel()

    @property
    def learns(self) -> bool:
        return any(weight.requires_grad for weight in self.weights)


def layers_of(model: nn.Module) -> Iterator[tuple[str, Layer]]:
    """Those of a model by path, each with its weights."""
    modules = dict(model.named_modules())
    for path, module in modules.items():
        buffers = vars(module).get("_buffers", {})
        mean, variance = buffers.get("running_mean"), buffers.get("running_var")
        if mean is None or variance is None or per_example(module):
            continue
        if comparable(mean, variance):
            own = tuple(weight for weight in module._parameters.values() if weight is not None)
            weights = own or weights_around(path, modules)
            if weights:
                yield clean(path), Layer(module, (mean, variance), weights, bool(own))


def weights_around(path: str, modules: Mapping[str, nn.Module]) -> tuple[Tensor, ...]:
    """The first ones of the smallest module around a layer that has any."""
    while path:
        path = path.rpartition(".")[0]
        weights = tuple(islice(modules[path].parameters(), BESIDE))
        if weights:
            return weights
    return ()


def comparable(mean: Tensor, variance: Tensor) -> bool:
    """A layer that takes its width from the first batch has none yet."""
    if nn.parameter.is_lazy(mean) or nn.parameter.is_lazy(variance):
        return False
    known = has_values(mean) and has_values(variance) and mean.is_floating_point()
    return known and mean.shape == variance.shape and mean.numel() > 0


def per_example(module: nn.Module) -> bool:
    """Normalises each example by itself while it trains."""
    return isinstance(module, nn.InstanceNorm1d | nn.InstanceNorm2d | nn.InstanceNorm3d)


@dataclass(frozen=True)
class Seen:
    """The values of a layer at one moment."""

    width: int
    own: bool
    statistics: int
    weights: int
    initial: bool
    """Mean 0 and variance 1 throughout: of no batch."""
    varied: bool
    """Its weights differ from channel to channel, as training leaves them; as they are made they do not."""

    @property
    def in_use(self) -> bool:
        """Not one of the layers that a model has and does not call: their weights never get a gradient."""
        return self.varied or not self.own


@dataclass(frozen=True)
class Look:
    """An evaluated model and the trained layers of the same widths, at one moment."""

    step: int
    evaluated: Mapping[str, Seen]
    trained: Mapping[str, Seen]

    def beside(self, width: int) -> dict[str, Seen]:
        trained = self.trained.items()
        return {name: one for name, one in trained if one.width == width and one.in_use}


@dataclass(frozen=True)
class Cut:
    """How many values of a layer are read."""

    width: int
    own: bool
    statistics: tuple[int, int]
    weights: tuple[int, ...]


class Reading:
    """A look on its way from the device: all values one behind the other, and nothing of the script's."""

    def __init__(self, evaluated: Mapping[str, Layer], trained: Mapping[str, Layer]) -> None:
        parts: list[Tensor] = []
        self._evaluated = {name: cut(layer, parts) for name, layer in evaluated.items()}
        self._trained = {name: cut(layer, parts) for name, layer in trained.items()}
        self.numbers = torch.cat([part.to(parts[0].device) for part in parts])

    def look(self, step: int, numbers: np.ndarray) -> Look:
        """The numbers, now on the host."""
        begin = 0

        def take(count: int) -> np.ndarray:
            nonlocal begin
            begin += count
            return numbers[begin - count : begin]

        evaluated = {name: seen(one, take) for name, one in self._evaluated.items()}
        return Look(step, evaluated, {name: seen(one, take) for name, one in self._trained.items()})


def cut(layer: Layer, parts: list[Tensor]) -> Cut:
    statistics = [first_values(tensor) for tensor in layer.statistics]
    weights = [first_values(tensor) for tensor in layer.weights]
    parts += [*statistics, *weights]
    mean, variance = map(len, statistics)
    return Cut(layer.width, layer.own, (mean, variance), tuple(map(len, weights)))


def first_values(tensor: Tensor) -> Tensor:
    """None of a weight whose memory was given back, as sharding does between passes."""
    if not has_values(tensor) or not tensor.is_floating_point():
        return torch.empty(0)
    return local(tensor).detach().flatten()[:SLICE]


def seen(layer: Cut, take: Callable[[int], np.ndarray]) -> Seen:
    mean, variance = (take(count) for count in layer.statistics)
    weights = [take(count) for count in layer.weights]
    return Seen(
        width=layer.width,
        own=layer.own,
        statistics=zlib.crc32(mean.tobytes() + variance.tobytes()),
        weights=zlib.crc32(b"".join(weight.tobytes() for weight in weights)),
        initial=bool((mean == 0).all() and (variance == 1).all()),
        varied=all(len(weight) > 0 and bool((weight != weight[0]).any()) for weight in weights),
    )
