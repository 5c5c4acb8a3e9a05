"""A trace: the tensors of a few training steps, in the order in which they were made. Plain data, read when asked for."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

KINDS = ("input", "weight", "activation", "loss", "gradient", "update")

Key = tuple[str, int, str]
"""kind, step, name"""


@dataclass(frozen=True)
class Entry:
    """One tensor of a trace."""

    name: str
    kind: str
    """One of KINDS."""
    step: int
    """Optimizer steps before it; a weight is the one that the step begins with."""
    shape: tuple[int, ...]
    dtype: str
    """As the program computed it; `read` may give a wider one."""
    read: Callable[[], NDArray[Any]] = field(repr=False, compare=False)
    rows: tuple[int, ...] | None = None
    """Of a large tensor, seen as rows of its last dimension: those that were kept."""
    about: Mapping[str, Any] = field(default_factory=dict)
    """What is known of its maker: `op` (the class of the module), `eps`, `owner` (the module of a weight), `of`."""

    @property
    def key(self) -> Key:
        return self.kind, self.step, self.name

    @property
    def size(self) -> int:
        count = 1
        for length in self.shape:
            count *= length
        return count

    def values(self) -> NDArray[Any]:
        """Its numbers: float64 for floats, of the shape that was kept (rows of the last dimension where some were)."""
        read = self.read()
        return read.astype(np.float64) if read.dtype.kind == "f" else read


@dataclass(frozen=True)
class Trace:
    """What one side did."""

    entries: tuple[Entry, ...]
    title: str
    """The side, as the user named it."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """What it says of itself: lr, beta1, beta2, eps, weight_decay, heads, precision, versions."""

    @cached_property
    def by_key(self) -> dict[Key, Entry]:
        return {entry.key: entry for entry in self.entries}

    @property
    def steps(self) -> int:
        return 1 + max((entry.step for entry in self.entries), default=-1)

    def of_kind(self, kind: str, step: int | None = None) -> list[Entry]:
        return [e for e in self.entries if e.kind == kind and step in (None, e.step)]
