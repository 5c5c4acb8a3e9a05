"""Where a trace's tensors go: into a dump folder, or against an earlier trace of the same side."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from traindoctor.compare.dump import DumpWriter
from traindoctor.compare.tolerance import Distance
from traindoctor.compare.trace import Key, Trace

# Numbers kept of one tensor: every activation of a model of 100 million weights at 4 rows of 1024 tokens is near that.
MOST_KEPT = 1 << 22

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

    def __init__(self, writer: DumpWriter, *, most: int = MOST_KEPT) -> None:
        self._writer, self._most = writer, most

    def take(
        self, name: str, kind: str, step: int, tensor: Tensor, about: Mapping[str, Any]
    ) -> None:
        shape = tuple(tensor.shape)
        rows = kept_rows(shape, self._most)
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
        self.distances[first.key] = distance_of_tensors(there, here)


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
    return Distance(whole, float(apart.div_(there.abs() + rms).max()))


class Renaming:
    """Hands tensors on under the names and layouts of the other side."""

    def __init__(self, sink: Any, rename: Callable[[str, str], str]) -> None:
        self._sink, self._rename = sink, rename

    def take(
        self, name: str, kind: str, step: int, tensor: Tensor, about: Mapping[str, Any]
    ) -> None:
        self._sink.take(self._rename(name, kind), kind, step, tensor, about)
