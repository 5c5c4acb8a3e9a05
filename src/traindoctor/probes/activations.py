"""Outputs of the model's modules in a sampled training forward pass."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor

from traindoctor.events import Event, ForwardBegin, ForwardEnd
from traindoctor.ground.border import border
from traindoctor.ground.hook_handles import own_handles
from traindoctor.ground.names import may_run_compiled
from traindoctor.probes.base import Cost, Later
from traindoctor.record import RecordWriter

if TYPE_CHECKING:
    from traindoctor.ground.names import Names

STATISTICS = ("rms", "absmax", "zeros", "dead", "nonfinite", "input_dependence")
# Units of these can die: silent for every example and every position of a batch.
RECTIFIERS = (torch.nn.ReLU, torch.nn.ReLU6, torch.nn.LeakyReLU, torch.nn.GELU, torch.nn.SiLU)
# A hook on each module of a very deep tree would cost more than it tells.
MOST_MODULES = 256


class Activations:
    """`act.*` by module: rms, largest value, share of zeros, dead units, non-finite share, input dependence.

    Hooks stand only for one forward pass of a sampled step. A compiled model is left alone: its hooks
    would never fire, or would make torch compile again.

    Input dependence is the variance over the batch at a fixed position, over the mean square: 0 when the
    output is the same for every example.
    """

    name: ClassVar[str] = "activations"
    cost: ClassVar[Cost] = "costly"
    every: ClassVar[int] = 50
    hears: ClassVar[tuple[type, ...]] = (ForwardBegin, ForwardEnd)

    names: Names

    def __init__(self) -> None:
        self.seconds_inside = 0.0
        self._later = Later()
        self._handles: list[Any] = []
        self._rows: dict[str, Tensor] = {}
        self._done = False

    def on(self, event: Event, *, due: bool) -> None:
        if isinstance(event, ForwardBegin):
            if due and event.wants_grad and event.training and not self._done:
                self.seconds_inside = 0.0
                self._hook(event.module)
        elif isinstance(event, ForwardEnd) and self._handles:
            self._unhook()
            self._done = True

    def _hook(self, root: torch.nn.Module) -> None:
        modules = [m for m in root.modules() if not isinstance(m, torch.jit.ScriptModule)]
        if may_run_compiled(root):
            return
        with own_handles():
            for module in modules[:MOST_MODULES]:
                if measurable(module):
                    self._handles.append(module.register_forward_hook(self._measure))

    def _unhook(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def _measure(self, module: torch.nn.Module, args: Any, output: Any) -> None:
        """Runs inside the user's forward pass."""
        border.enter(self._look, module, output)

    def _look(self, module: torch.nn.Module, output: Any) -> None:
        began = time.perf_counter()
        try:
            tensor = output[0] if isinstance(output, tuple) and output else output
            name = self.names.of_module(module)
            if isinstance(tensor, Tensor) and tensor.is_floating_point() and tensor.numel():
                self._rows.setdefault(name, statistics(tensor.detach(), module))
        except Exception:  # one measurement less: the others go on
            self._rows.clear()
            self._unhook()
        self.seconds_inside += time.perf_counter() - began

    def close_step(self, step: int, record: RecordWriter, *, due: bool) -> None:
        self._unhook()
        rows, self._rows, self._done = self._rows, {}, False
        if rows:
            names = list(rows)
            device = next(iter(rows.values())).device
            table = torch.stack([row.to(device) for row in rows.values()])
            self._later.put(step, table, lambda values: write(record, step, names, values))
        self._later.collect(step)

    def finish(self, record: RecordWriter) -> None:
        self._unhook()
        self._later.collect()


def measurable(module: torch.nn.Module) -> bool:
    """Modules that compute something: with parameters of their own, or an activation function, or a block."""
    if isinstance(module, (torch.nn.Dropout, torch.nn.Identity, torch.nn.ModuleList)):
        return False
    return True


def statistics(output: Tensor, module: torch.nn.Module) -> Tensor:
    """One number for each of STATISTICS, on the output's device."""
    x = output.float()
    low, high = torch.aminmax(x)
    square = x.square().mean()
    nan = torch.full_like(square, torch.nan)
    dead = nan
    zero = x == 0
    if isinstance(module, RECTIFIERS) and x.ndim > 1:
        dead = zero.flatten(0, -2).all(0).float().mean()
    depends = nan
    if x.ndim > 1 and x.shape[0] > 1:
        depends = x.var(0, unbiased=False).mean() / square
    broken = (~torch.isfinite(x)).float().mean()
    return torch.stack(
        [square.sqrt(), torch.maximum(high, -low), zero.float().mean(), dead, broken, depends]
    )


def write(record: RecordWriter, step: int, names: list[str], table: Tensor) -> None:
    for column, name in enumerate(STATISTICS):
        record.layers(f"act.{name}", step, names, table[:, column].numpy())
