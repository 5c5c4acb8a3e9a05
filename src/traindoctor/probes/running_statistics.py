"""Running statistics that an evaluation normalises with: do they follow its weights, as those of the training do?"""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import ClassVar

from torch import Tensor, nn

from traindoctor.events import Event, ForwardBegin
from traindoctor.ground.names import unwrap
from traindoctor.ground.normalising import Look, Reading, Seen, layers_of
from traindoctor.probes.base import Cost, Later
from traindoctor.record import RecordWriter

# Evaluations of a model that are all looked at; after them those at powers of two, so that a teacher costs as little.
FIRST = 4
# Models that are followed. Where more are trained, each layer is called by itself, and none stands for a whole.
MOST_MODELS = 8


class RunningStatistics:
    """The fact `mode.running_statistics`: layers of an evaluated model whose running statistics do not follow its weights.

    They are read where an evaluation pass begins: buffers `running_mean` and `running_var`, of BatchNorm or of a layer
    that calls the function itself. Layers that are trained themselves are what the others are held against.
    """

    name: ClassVar[str] = "running_statistics"
    cost: ClassVar[Cost] = "free"
    every: ClassVar[int] = 1
    hears: ClassVar[tuple[type, ...]] = (ForwardBegin,)

    def __init__(self) -> None:
        self._trained: weakref.WeakKeyDictionary[nn.Module, int] = weakref.WeakKeyDictionary()
        """Models that want gradients, by number: paths of two models may be the same."""
        self._numbers = count()
        self._evaluated: weakref.WeakKeyDictionary[nn.Module, Evaluated] = (
            weakref.WeakKeyDictionary()
        )
        self._heard: weakref.WeakSet[nn.Module] = weakref.WeakSet()
        """Evaluated since the last step: one pass of each evaluation is enough."""
        self._asked: list[tuple[Evaluated, Reading]] = []
        self._all: list[Evaluated] = []
        self._later = Later()
        self._step, self._began = 0, 0
        """The step that is under way, as far as we know, and the one at which the latest model began to train."""
        self._begins = False

    def on(self, event: Event, *, due: bool) -> None:
        if not isinstance(event, ForwardBegin):
            return
        model = event.module
        if event.wants_grad:
            if model not in self._trained:
                self._trained[model] = next(self._numbers)
                self._begins = True
        elif not event.training and model not in self._heard:
            self._heard.add(model)
            if not 0 < len(self._trained) <= MOST_MODELS:
                return
            if model not in self._evaluated and len(self._evaluated) < MOST_MODELS:
                self._evaluated[model] = Evaluated(type(unwrap(model)).__name__)
            known = self._evaluated.get(model)
            if known is not None and known.is_due():
                reading = self._reading(model)
                if reading is not None:
                    self._asked.append((known, reading))

    def _reading(self, model: nn.Module) -> Reading | None:
        """What is to be compared; None for a model that is trained itself, or that normalises otherwise."""
        trained = {
            f"{number} {path}": layer
            for root, number in self._trained.items()
            for path, layer in layers_of(root)
            if layer.learns
        }
        own = {id(layer.module) for layer in trained.values()}
        evaluated = {
            path: layer
            for path, layer in layers_of(model)
            if not layer.module.training and id(layer.module) not in own
        }
        widths = {layer.width for layer in evaluated.values()}
        beside = {name: layer for name, layer in trained.items() if layer.width in widths}
        return Reading(evaluated, beside) if beside else None

    def close_step(self, step: int, record: RecordWriter, *, due: bool) -> None:
        if self._begins:
            self._began, self._begins = step, False
        self._put(step, record)
        self._step = step + 1
        self._later.collect(step)

    def finish(self, record: RecordWriter) -> None:
        """Many scripts evaluate once, when the last step has been made."""
        self._put(self._step, record)
        self._later.collect()

    def _put(self, step: int, record: RecordWriter) -> None:
        for known, reading in self._asked:
            write = partial(self._write, record, known, reading, step, step - self._began)
            self._later.put(step, reading.numbers, write)
        self._asked = []
        self._heard.clear()

    def _write(
        self,
        record: RecordWriter,
        known: Evaluated,
        reading: Reading,
        step: int,
        trained_steps: int,
        numbers: Tensor,
    ) -> None:
        known.add(reading.look(step, numbers.numpy()), trained_steps)
        if known not in self._all:
            self._all.append(known)
        record.fact("mode.running_statistics", [one.fact for one in self._all])


@dataclass(eq=False)
class Evaluated:
    """A model that is evaluated, and what was seen of it."""

    name: str
    passes: int = 0
    looks: list[Look] = field(default_factory=list)
    fact: dict[str, object] = field(default_factory=dict)

    def is_due(self) -> bool:
        self.passes += 1
        return self.passes <= FIRST or self.passes.bit_count() == 1

    def add(self, look: Look, trained_steps: int) -> None:
        """The latest look counts, and of the earlier ones the oldest that has the same statistics."""
        initial = [path for path in look.evaluated if self._is_initial(look, path)]
        kept_since, kept = next(
            ((old.step, found) for old in self.looks if (found := unmoved(old, look))),
            (look.step, []),
        )
        before = self.fact.get("since")
        self.fact = {
            "model": self.name,
            "step": look.step,
            "since": (look.step if before is None else before) if initial or kept else None,
            "trained_steps": trained_steps,
            "layers": len(look.evaluated),
            "initial": len(initial),
            "kept": len(kept),
            "kept_since": kept_since,
            "where": next(iter([*initial, *kept]), None),
        }
        self.looks.append(look)

    def _is_initial(self, look: Look, path: str) -> bool:
        """Statistics of no batch beside weights that were trained, while all trained layers of this width have some."""
        one, beside = look.evaluated[path], look.beside(look.evaluated[path].width)
        if not one.initial or not beside or any(other.initial for other in beside.values()):
            return False
        changed = any(
            path in old.evaluated and old.evaluated[path].weights != one.weights
            for old in self.looks
        )
        return one.varied if one.own else changed


def unmoved(old: Look, now: Look) -> list[str]:
    """Layers with the same statistics, bit for bit, and other weights, while those of all trained layers of this width moved."""
    return [
        path
        for path, one in now.evaluated.items()
        if (before := old.evaluated.get(path)) is not None
        and one.in_use
        and before.statistics == one.statistics
        and before.weights != one.weights
        and all_moved(old.trained, now.beside(one.width))
    ]


def all_moved(old: Mapping[str, Seen], now: Mapping[str, Seen]) -> bool:
    return bool(now) and all(
        name in old and old[name].statistics != one.statistics for name, one in now.items()
    )
