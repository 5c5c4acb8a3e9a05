"""Which random numbers the heard steps drew: numbers that come from a state an earlier step has drawn from are the same.

A generator's state before a draw decides what is drawn. The same state before a draw of the same shape, on another step,
was set back in between: there is no noise in that.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from traindoctor.ground import frames
from traindoctor.ground.modes import random_states
from traindoctor.ground.nested import tensors_in
from traindoctor.ground.torch_private import is_profiling
from traindoctor.tape.conventions import draws

# Our own frames between the script and here.
FRAMES_OF_OURS = 4
Key = tuple[int, tuple[int, ...], str]


class Draws:
    """`state = before(...)`, the call itself, `after(state, ...)`; what recurs is in `told`."""

    def __init__(self) -> None:
        self._first: dict[Key, int] = {}
        """The step that first drew this."""
        self._steps: set[int] = set()
        """Steps that drew something."""
        self._again: dict[int, dict[str, Any]] = {}
        """Of the steps that drew what an earlier one had drawn: one such draw."""

    def before(self, name: str, args: Any, kwargs: Mapping[str, Any]) -> int | None:
        """A crc of the state that a function may draw from; None where it draws nothing, or for no training."""
        if not draws(name) or not torch.is_grad_enabled() or is_profiling():
            return None
        return _state(args, kwargs)

    def after(
        self, state: int | None, step: int, args: Any, kwargs: Mapping[str, Any], result: Any
    ) -> None:
        drawn = next(tensors_in(result), None) if state is not None else None
        if state is None or not isinstance(drawn, Tensor) or _state(args, kwargs) == state:
            return
        self._steps.add(step)
        key = (state, tuple(drawn.shape), str(drawn.dtype))
        if self._first.setdefault(key, step) != step and step not in self._again:
            place = frames.here(FRAMES_OF_OURS)
            line = place.line or place.package_line
            self._again[step] = {"line": line, "shape": list(drawn.shape), "step": step}

    @property
    def told(self) -> dict[str, Any] | None:
        """For the record: steps that drew something, those that drew it again, and one such draw."""
        if not self._steps:
            return None
        last = self._again[max(self._again)] if self._again else None
        return {"steps": len(self._steps), "again": len(self._again), "draw": last}


def _state(args: Any, kwargs: Mapping[str, Any]) -> int:
    generator = kwargs.get("generator")
    if generator is not None:
        return zlib.crc32(generator.get_state().numpy().tobytes())
    crc = 0
    for _, state in random_states(list(tensors_in((args, kwargs))), kwargs.get("device")):
        crc = zlib.crc32(state.numpy().tobytes(), crc)
    return crc
