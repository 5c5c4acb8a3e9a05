"""Layers of a model that normalise by running statistics, each with the weights that these belong to."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice

from torch import Tensor, nn

from traindoctor.ground.names import clean, has_values

# A layer without weights of its own has those beside it: the first tensors of the module around it.
BESIDE = 4


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
