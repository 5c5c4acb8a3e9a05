"""Training and evaluation mode of the modules while the model trains."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import Any, ClassVar

import torch

from traindoctor.events import Event, ForwardBegin
from traindoctor.ground.torch_private import BatchNorm, Dropout
from traindoctor.probes.base import Cost
from traindoctor.record import RecordWriter

# Modules whose mode changes what they compute; the mode of the others means nothing.
SENSITIVE = (
    Dropout,
    BatchNorm,
    torch.nn.RReLU,
    torch.nn.MultiheadAttention,
    torch.nn.RNNBase,
)


class Modes:
    """`mode.training`: share of mode-sensitive modules in training mode during the step's training forward, and
    `mode.whole`: whether the model around them is (it is where only parts were frozen);
    `mode.eval_training`: the same during forward passes without gradient. 1 or 0 in a sound run.
    `mode.beside_training`: the same of another model that is asked without gradient (a teacher). The fact
    `mode.statistics`: whether some of them keep statistics of what they saw, as BatchNorm does."""

    name: ClassVar[str] = "modes"
    cost: ClassVar[Cost] = "free"
    every: ClassVar[int] = 1
    hears: ClassVar[tuple[type, ...]] = (ForwardBegin,)

    def __init__(self) -> None:
        self._modules: weakref.WeakKeyDictionary[torch.nn.Module, list[tuple[Any, Any]]] = (
            weakref.WeakKeyDictionary()
        )
        """Model -> weak references to its mode-sensitive modules, each with the one whose weights it works beside."""
        self._trained: weakref.WeakSet[torch.nn.Module] = weakref.WeakSet()
        self._training: float | None = None
        self._whole = False
        self._evaluating: float | None = None
        self._beside: float | None = None
        self._statistics: bool | None = None
        self._told = False
        self._last: int | None = None

    def on(self, event: Event, *, due: bool) -> None:
        if not isinstance(event, ForwardBegin):
            return
        if event.wants_grad:
            self._trained.add(event.module)
            if self._training is None:
                self._training = self._share(event.module, frozen=False)
                self._whole = event.module.training
            if self._statistics is None:
                self._statistics = any(keeps_statistics(m) for m in event.module.modules())
        elif event.module in self._trained and learns(event.module):
            if self._evaluating is None:
                self._evaluating = self._share(event.module)
        elif self._beside is None:
            # A teacher or a moving average of the model is another module, and its own affair.
            self._beside = self._share(event.module)

    def _share(self, module: torch.nn.Module, *, frozen: bool = True) -> float | None:
        """Of those that matter in training mode; what is frozen may be in evaluation mode for good."""
        known = self._modules.get(module)
        if known is None:
            known = [(weakref.ref(m), weakref.ref(home)) for m, home in sensitive(module, module)]
            self._modules[module] = known
        alive = [
            (m, home) for a, b in known if (m := a()) is not None and (home := b()) is not None
        ]
        modes = [m.training for m, home in alive if frozen or learns(home)]
        return sum(modes) / len(modes) if modes else None

    def close_step(self, step: int, record: RecordWriter, *, due: bool) -> None:
        if self._statistics is not None and not self._told:
            record.fact("mode.statistics", self._statistics)
            self._told = True
        if self._training is not None:
            record.scalar("mode.training", step, self._training)
            record.scalar("mode.whole", step, float(self._whole))
        if self._evaluating is not None:
            record.scalar("mode.eval_training", step, self._evaluating)
        if self._beside is not None:
            record.scalar("mode.beside_training", step, self._beside)
        self._training = self._evaluating = self._beside = None
        self._last = step

    def finish(self, record: RecordWriter) -> None:
        """Many scripts evaluate once, when the last step has been made."""
        if self._evaluating is not None and self._last is not None:
            record.scalar("mode.eval_training", self._last, self._evaluating)


def sensitive(
    module: torch.nn.Module, home: torch.nn.Module
) -> Iterator[tuple[torch.nn.Module, torch.nn.Module]]:
    """Modules whose mode matters, each with the nearest one around it, or itself, that has weights."""
    if any(True for _ in module.parameters()):
        home = module
    if matters(module):
        yield module, home
    for child in module.children():
        yield from sensitive(child, home)


def learns(module: torch.nn.Module) -> bool:
    """What was trained and then frozen is asked, not evaluated."""
    return any(parameter.requires_grad for parameter in module.parameters())


def matters(module: torch.nn.Module) -> bool:
    """Whether the mode changes what the module computes: dropout of probability 0 is the same in both."""
    if not isinstance(module, SENSITIVE):
        return False
    chance = getattr(module, "p", getattr(module, "dropout", None))
    return not isinstance(chance, int | float) or chance > 0


def keeps_statistics(module: torch.nn.Module) -> bool:
    return isinstance(module, BatchNorm) and bool(module.track_running_stats)
