"""Where a trace's tensors go: into a dump folder, or against an earlier trace of the same side."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from traindoctor.compare.dump import DumpWriter
from traindoctor.compare.tolerance import FEWEST, MARGIN, Distance
from traindoctor.compare.trace import Key, Trace

# Numbers kept of one activation, and of what belongs to a weight: a matrix of 2048 x 2048 is kept whole, since parts of
# it could not be turned over or put side by side with others.
MOST_KEPT = {"activation": 1 << 20, "gradient": 1 << 22, "update": 1 << 22, "weight": 1 << 22}

HALF = {torch.bfloat16: "bfloat16"}


def kept_rows(shape: tuple[int, ...], most: int) -> tuple[int, ...] | None:
    """Of a large tensor, seen as rows of its last dimension: evenly spaced ones, the first and the last among them."""
    size = int(np.prod(shape, dtype=np.int64)) if shape else 1
    if size <= most or len(shape) < 2 or not shape[-1]:
        return None
    rows = size // shape[-1]
    wanted = max(2, most // shape[-1])
    return tuple(int(row) for row in np.unique(np.linspace(0, rows - 1, wanted).round()))


def rows_of(tensor: Tensor, rows: tuple[int, ...] | None) -> Tensor:
    if rows is None:
        return tensor
    flat = tensor.reshape(-1, tensor.shape[-1])
    return flat[torch.tensor(rows, device=flat.device)]


class DumpSink:
    """Writes every tensor, of large ones some rows."""

    def __init__(self, writer: DumpWriter) -> None:
        self._writer = writer

    def take(
        self, name: str, kind: str, step: int, tensor: Tensor, about: Mapping[str, Any]
    ) -> None:
        shape = tuple(tensor.shape)
        # The gradient of an activation has its rows: only weights are kept in more detail.
        part_of = "activation" if about.get("op") else kind
        rows = kept_rows(shape, MOST_KEPT.get(part_of, 1 << 30))
        kept = rows_of(tensor, rows).cpu().contiguous()
        dtype = str(kept.dtype).removeprefix("torch.")
        values = kept.view(torch.int16) if kept.dtype in HALF else kept
        self._writer.write(
            name,
            kind,
            step=step,
            values=values.numpy(),
            dtype=dtype,
            shape=shape,
            rows=rows,
            about=about,
        )


@dataclass
class SpreadSink:
    """How far each tensor is from the one of an earlier trace: of the same side, perturbed or made again."""

    trace: Trace
    distances: dict[Key, Distance] = field(default_factory=dict)
    _open: dict[str, Tensor] = field(default_factory=dict)
    """Of each weight, the elements whose update its gradients do not determine (compare.tolerance.undetermined)."""

    def take(
        self, name: str, kind: str, step: int, tensor: Tensor, about: Mapping[str, Any]
    ) -> None:
        first = self.trace.by_key.get((kind, step, name))
        if first is None or not tensor.is_floating_point() or first.shape != tuple(tensor.shape):
            return
        here = rows_of(tensor, first.rows).to(
            torch.float64 if tensor.device.type == "cpu" else torch.float32
        )
        there = torch.from_numpy(
            np.array(first.read(), dtype=np.float32 if here.dtype == torch.float32 else np.float64)
        ).to(here.device)
        hidden = self._open.get(name) if kind == "update" else None
        if hidden is not None and hidden.shape == there.shape:
            there, here = there.masked_fill(hidden, 0.0), here.masked_fill(hidden, 0.0)
        found = self.distances[first.key] = distance_of_tensors(there, here)
        if kind == "gradient" and not about.get("op"):
            rms = float(torch.linalg.vector_norm(there)) / max(1, there.numel()) ** 0.5
            small = there.abs() <= MARGIN * found.whole * rms
            self._open[name] = small & self._open[name] if name in self._open else small


def distance_of_tensors(there: Tensor, here: Tensor) -> Distance:
    """As compare.tolerance.distance, on the device."""
    if not there.numel():
        return Distance(0.0, 0.0)
    apart = (here - there).abs_()
    norm = float(torch.linalg.vector_norm(there))
    rms = norm / there.numel() ** 0.5
    if not norm:
        worst = float(apart.max())
        return Distance(np.inf if worst else 0.0, np.inf if worst else 0.0)
    whole = float(torch.linalg.vector_norm(apart)) / norm
    slope = 0.0
    if there.numel() >= FEWEST:
        slope = abs(float(torch.dot(there.flatten(), here.flatten())) / norm**2 - 1)
    return Distance(whole, float(apart.div_(there.abs() + rms).max()), slope)
