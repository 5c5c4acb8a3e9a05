"""The dump of one rank of a script: batch, weights, losses and gradients by name, sharded tensors as this rank holds them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from traindoctor.capture.hub import hub
from traindoctor.compare.dump import DumpWriter
from traindoctor.compare.trace import Key
from traindoctor.ground.names import clean, local, unwrap
from traindoctor.tracing.patient import settings_of
from traindoctor.tracing.rounding import From, Rounding
from traindoctor.tracing.sinks import DumpSink
from traindoctor.tracing.steps import Side, Sink, batch_tensors


class RankDump:
    """Takes what belongs to one rank, under the names of the model without its wrappers."""

    def __init__(self, folder: Path, model: nn.Module, rank: int, ranks: int) -> None:
        self.folder = folder
        inner = unwrap(model)
        flat = flattened(inner)
        named = {clean(name): p for name, p in inner.named_parameters()}
        self._shards = {name: shard_of(p) for name, p in named.items() if not flat}
        self._parameters = {n: named[n] for n, shard in self._shards.items() if shard is not None}
        settings = {"rank": rank, "ranks": ranks, "flat": flat} | _settings(inner)
        self._writer = DumpWriter(folder, settings=settings)
        self._sink: Sink = DumpSink(self._writer)
        self._step = 0
        self._counts: Counter[str] = Counter()
        self._scale = 1.0

    @classmethod
    def claim(cls, out: Path, model: nn.Module, rank: int, ranks: int) -> RankDump | None:
        """None where another process has this number."""
        folder = out / f"rank-{rank}"
        try:
            folder.mkdir()
        except FileExistsError:
            return None
        return cls(folder, model, rank, ranks)

    def perturb_behind(self, rounding: Rounding, start: Key) -> None:
        self._sink = From(self._sink, rounding, start)

    def begin(self, step: int) -> None:
        self._step = step
        self._counts.clear()

    def close(self) -> None:
        self._writer.close()

    def take(
        self, name: str, kind: str, step: int, tensor: Tensor, about: Mapping[str, Any]
    ) -> None:
        """A tensor of the model's; the gradient of an output lies `scale` too high under a gradient scaler."""
        if hasattr(tensor, "placements"):
            return  # of an output that ranks share, one rank's part says little
        if kind == "gradient" and about.get("op") and self._scale != 1.0:
            tensor = tensor.float() / self._scale
        shard = self._shards.get(name) if not about.get("op") else None
        self._sink.take(name, kind, step, tensor, {**about, "shard": shard} if shard else about)

    def parts(self, of: Collection[int] | None = None) -> dict[str, Tensor]:
        """What this rank holds of the weights."""
        return {
            name: local(parameter).detach()
            for name, parameter in self._parameters.items()
            if of is None or id(parameter) in of
        }

    def weights(self) -> None:
        for name, tensor in self.parts().items():
            self.take(name, "weight", self._step, tensor, {})

    def batches(self, given: Any) -> Iterator[Tensor]:
        """What a model was called with."""
        for name, tensor in list(batch_tensors(given)):
            if not tensor.requires_grad:
                self.batch(name, tensor)
                yield tensor

    def batch(self, name: str, tensor: Tensor) -> None:
        if not hasattr(tensor, "placements"):
            self._sink.take(self._numbered(name), "input", self._step, tensor.detach(), {})

    def loss(self, roots: Sequence[Tensor], scale: float) -> None:
        self._scale = scale
        for root in roots:
            if root.numel() == 1 and not hasattr(root, "placements"):
                value = root.detach().reshape(())
                value = value.float() / scale if scale != 1.0 else value
                self._sink.take(self._numbered("loss"), "loss", self._step, value, {})

    def gradients(self, of: Collection[int], kept: Mapping[int, Tensor], scale: Any) -> None:
        """Of these parameters, the last layer's first, as the optimizer finds them or as they were before clipping."""
        for name, parameter in reversed(self._parameters.items()):
            if id(parameter) not in of or parameter.grad is None:
                continue
            gradient = kept.get(id(parameter), local(parameter.grad)).detach()
            gradient = gradient.to_dense() if gradient.is_sparse else gradient
            if isinstance(scale, (Tensor, float)):
                gradient = gradient.float() / scale
            self.take(name, "gradient", self._step, gradient, {})

    def _numbered(self, name: str) -> str:
        self._counts[name] += 1
        count = self._counts[name]
        return name if count == 1 else f"{name}#{count}"


def shard_of(parameter: Tensor) -> list[int] | None:
    """[] for a whole tensor, [dimension, part, parts] for one that lies in parts on ranks; None where it is cut otherwise."""
    placements = getattr(parameter, "placements", None)
    if placements is None:
        return []
    cut = [i for i, one in enumerate(placements) if not one.is_replicate()]
    if not cut:
        return []
    mesh = parameter.device_mesh  # type: ignore[attr-defined]
    where = mesh.get_coordinate()
    plain = type(placements[cut[0]]).__name__ == "Shard"
    if len(cut) > 1 or not plain or where is None:
        return None
    return [int(placements[cut[0]].dim), int(where[cut[0]]), int(mesh.size(cut[0]))]


def flattened(model: nn.Module) -> bool:
    """FSDP's first version puts the parameters of a module into one: nobody can tell them apart."""
    return any(type(one).__name__ == "FullyShardedDataParallel" for one in model.modules())


def _settings(model: nn.Module) -> dict[str, Any]:
    known = list(hub.optimizers)
    if not known or next(model.parameters(), None) is None:
        return {}
    largest = max(known, key=lambda one: sum(len(group["params"]) for group in one.param_groups))
    return settings_of(Side(model, [], torch.nn.functional.mse_loss, largest))
