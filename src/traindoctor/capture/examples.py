"""Keeps the single examples of a step that calls its model once per example, for the exam that batches them."""

from __future__ import annotations

import functools
from typing import Any

import torch

from traindoctor.capture.hub import hub
from traindoctor.events import ForwardBegin
from traindoctor.experiment.patient import Patient
from traindoctor.ground.memory import nbytes
from traindoctor.ground.names import unwrap
from traindoctor.ground.nested import replace, tensors_in

# A loop over examples, not a few calls of accumulation.
MANY = 4
# Enough to time a batch against a loop, few enough to hold.
KEPT = 16
MOST_BYTES = 16 * 2**20


# Steps in which calls inside the model are counted, and those of the largest module that is called so often kept.
COUNTED, COPIED = 1, 2


class Examples:
    """`patient.facts["examples"]`: the model and (args, kwargs) of its calls in one step, each with a batch of one.

    The loop may stand in the model's own forward: then it is the module inside that is called once per example,
    and the record says so (`forward.inner_loop`).
    """

    def __init__(self, patient: Patient) -> None:
        self.patient = patient
        self._step = -1
        self._model: torch.nn.Module | None = None
        self._calls: list[tuple[tuple[Any, ...], dict[str, Any]]] = []
        self._bytes = 0
        self._inside: dict[torch.nn.Module, int] = {}
        """Modules called with one example of the data -> how often in a step; 0: also with something else."""
        self._passes = 0
        """Calls of the model in the step in which calls inside it are counted: accumulation has several."""

    def on(self, event: ForwardBegin, step: int) -> None:
        if "examples" in self.patient.facts or not event.wants_grad:
            return
        if step != self._step:
            self._look_inside(step)
            self._step, self._model, self._calls, self._bytes = step, None, [], 0
        self._passes += step == COUNTED
        model = unwrap(event.module)
        if self._model not in (None, model) or not single(event.args, event.kwargs):
            return
        hub.inner, self._inside = None, {}  # the loop is the script's
        self._keep(model, event.args, event.kwargs)
        if len(self._calls) == KEPT or (len(self._calls) >= MANY and step > COPIED):
            self.patient.facts["examples"] = (model, list(self._calls))

    def _keep(self, model: torch.nn.Module, args: Any, kwargs: Any) -> None:
        self._model = model
        self._bytes += size((args, kwargs))
        if self._bytes <= MOST_BYTES:
            self._calls.append(kept((args, kwargs)))
        else:
            self._calls = []

    # -- inside a model's forward ------------------------------------------------------------------

    def _look_inside(self, step: int) -> None:
        hub.inner = self._count if step == COUNTED else None
        if step == COPIED:
            self._inside = {m: calls // self._passes for m, calls in self._inside.items()}
            often = [module for module, calls in self._inside.items() if calls >= MANY]
            largest = max(often, key=num_parameters, default=None)
            if largest is not None and num_parameters(largest):
                hub.inner = functools.partial(self._copy, largest)
        elif step > COPIED and self._inside:
            calls = self._inside.get(self._model, 0) if self._model is not None else 0
            self._inside = {}
            if calls >= MANY and len(self._calls) >= MANY:
                self.patient.facts["examples"] = (self._model, list(self._calls))
                if self.patient.writer is not None:
                    self.patient.writer.fact("forward.inner_loop", calls)

    def _count(self, module: torch.nn.Module, args: Any, kwargs: Any) -> None:
        before = self._inside.get(module)
        alone = before != 0 and single(args, kwargs) and of_data(args, kwargs)
        self._inside[module] = (before or 0) + 1 if alone else 0

    def _copy(
        self, chosen: torch.nn.Module, module: torch.nn.Module, args: Any, kwargs: Any
    ) -> None:
        if module is chosen and len(self._calls) < KEPT and single(args, kwargs):
            self._keep(module, args, kwargs)


def num_parameters(module: torch.nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


def of_data(args: Any, kwargs: Any) -> bool:
    """No argument was made by the model: what one call gives another cannot be one batch."""
    return not any(
        isinstance(x, torch.Tensor) and x.requires_grad for x in (*args, *kwargs.values())
    )


def single(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    shapes = [x.shape for x in (*args, *kwargs.values()) if isinstance(x, torch.Tensor)]
    return bool(shapes) and all(len(shape) > 0 and shape[0] == 1 for shape in shapes)


def size(value: Any) -> int:
    """Bytes of all tensors in it; raises where its lists have no end."""
    return sum(nbytes(tensor) for tensor in tensors_in(value))


def kept(value: Any) -> Any:
    """A copy that holds no graph."""
    return replace(value, torch.Tensor, lambda tensor: tensor.detach().clone())
