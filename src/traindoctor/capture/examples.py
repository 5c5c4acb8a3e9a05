"""Keeps the single examples of a step that calls its model once per example, for the exam that batches them."""

from __future__ import annotations

from typing import Any

import torch

from traindoctor.events import ForwardBegin
from traindoctor.replay.names import unwrap
from traindoctor.replay.patient import Patient

# A loop over examples, not a few calls of accumulation.
MANY = 4
# Enough to time a batch against a loop, few enough to hold.
KEPT = 16
MOST_BYTES = 16 * 2**20


class Examples:
    """`patient.facts["examples"]`: the model and (args, kwargs) of its calls in one step, each with a batch of one."""

    def __init__(self, patient: Patient) -> None:
        self.patient = patient
        self._step = -1
        self._model: torch.nn.Module | None = None
        self._calls: list[tuple[tuple[Any, ...], dict[str, Any]]] = []
        self._bytes = 0

    def on(self, event: ForwardBegin, step: int) -> None:
        if "examples" in self.patient.facts or not event.wants_grad:
            return
        if step != self._step:
            self._step, self._model, self._calls, self._bytes = step, None, [], 0
        model = unwrap(event.module)
        if self._model not in (None, model) or not single(event):
            return
        self._model = model
        self._calls.append(kept((event.args, event.kwargs)))
        self._bytes += size(self._calls[-1])
        if self._bytes > MOST_BYTES:
            self._calls = []
        elif len(self._calls) == KEPT or (len(self._calls) >= MANY and step > 2):
            self.patient.facts["examples"] = (model, list(self._calls))


def single(event: ForwardBegin) -> bool:
    shapes = [x.shape for x in (*event.args, *event.kwargs.values()) if isinstance(x, torch.Tensor)]
    return bool(shapes) and all(len(shape) > 0 and shape[0] == 1 for shape in shapes)


def kept(value: Any) -> Any:
    """A copy that holds no graph."""
    if isinstance(value, torch.Tensor):
        return value.detach().clone()
    if isinstance(value, tuple):
        return tuple(kept(item) for item in value)
    if isinstance(value, dict):
        return {key: kept(item) for key, item in value.items()}
    return value


def size(value: Any) -> int:
    if isinstance(value, torch.Tensor):
        return value.numel() * value.element_size()
    if isinstance(value, (tuple, list)):
        return sum(size(item) for item in value)
    return sum(size(item) for item in value.values()) if isinstance(value, dict) else 0
