"""In a process of a traced script: hears its first training steps and writes the dump of its rank, then waits to be ended.

Everything here is called behind the border (ground/border.py). No collective is called and no random state is touched.
"""

import os
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from traindoctor.capture.hub import Patches, hub
from traindoctor.capture.ranks import world
from traindoctor.capture.taps import autograd, loss, module, optimizer, precision
from traindoctor.capture.watch import Watch
from traindoctor.compare.trace import Key
from traindoctor.events import (
    BackwardBegin,
    Event,
    ForwardBegin,
    LossCalled,
    StepBegin,
    StepEnd,
    Unscaled,
)
from traindoctor.ground.border import border
from traindoctor.ground.names import local, may_run_compiled
from traindoctor.ground.no_communication import no_communication, tensors_may_be_sharded
from traindoctor.tracing.rounding import Rounding
from traindoctor.tracing.script_clipping import before_clipping
from traindoctor.tracing.script_model import hooked, whole_model
from traindoctor.tracing.script_rank import RankDump
from traindoctor.tracing.steps import Movement, Tracer

# Left in the folder of the run: by a rank that has seen its steps, by whoever started the script, by a fault of ours.
DONE, STOP, FAULT = "done", "stop", "fault.txt"
# A process whose starter is gone ends by itself.
MOST_WAITING = 120.0


@dataclass(frozen=True)
class Orders:
    """What whoever started the script asks for."""

    folder: Path
    steps: int
    moved: int | None = None
    """Seed of a perturbed run: weights and, where the script is eager, every operation are moved by a last place."""
    coarse: float = 0.0
    products: float = 0.0
    start: Key | None = None
    """The tensor behind which the operations are perturbed; without one all are, and the weights."""


def attend(watch: Watch, settings: Mapping[str, Any]) -> None:
    """Called in each process once it trains (capture/arming.py knows it by name). The watch gives way: no record is made."""
    watch.detach()
    start = settings.get("start")
    orders = Orders(
        Path(settings["out"]),
        steps=int(settings["steps"]),
        moved=settings.get("moved"),
        coarse=float(settings.get("coarse", 0.0)),
        products=float(settings.get("products", 0.0)),
        start=(start[0], int(start[1]), start[2]) if start else None,
    )
    Listener(orders).attach()


class Listener:
    """Counts the steps and hands on what each event brings."""

    def __init__(self, orders: Orders) -> None:
        self._orders = orders
        self._process = os.getpid()
        self._dump: RankDump | None = None
        self._tracer: Tracer | None = None
        self._root: nn.Module | None = None
        self._movements: dict[int, Movement] = {}
        self._kept: dict[int, Tensor] = {}
        """Gradients as they were before the step's clipping."""
        self._step = 0
        self._stepped = False
        """An optimizer has stepped since the last pass began."""
        self._given = False
        """The batch of this pass has been seen."""
        self._rounding: Rounding | None = None
        """To be put in force."""
        self._over = False

    def attach(self) -> None:
        patches = Patches()
        for tap in (autograd, loss, module, optimizer, precision):
            tap.install(patches)
        before_clipping(patches, lambda parameters: border.enter(self._clips, parameters))
        hub.border, border.on, border.when_broken = border, True, self._broken
        hub.begin(self.receive)

    def receive(self, event: Event) -> None:
        """Called by the hub, behind the border."""
        if self._silent():
            return
        if tensors_may_be_sharded():
            with no_communication():
                self._handle(event)
        else:
            self._handle(event)
        if self._rounding is not None:
            # Not inside `no_communication`, whose mode is the last one on the stack. It stays until the process ends.
            self._rounding.__enter__()  # type: ignore[no-untyped-call]
            self._rounding = None
        if self._over:
            self._wait()

    def _silent(self) -> bool:
        return self._over or os.getpid() != self._process

    def _handle(self, event: Event) -> None:
        if isinstance(event, ForwardBegin) and event.wants_grad and len(hub.optimizers):
            self._forward(event)
        elif self._dump is None:
            return
        elif isinstance(event, LossCalled) and event.wants_grad and not self._stepped:
            self._dump.batch("target", event.target)
        elif isinstance(event, BackwardBegin):
            self._backward(event)
        elif isinstance(event, Unscaled):
            self._kept.clear()
        elif isinstance(event, StepBegin):
            self._step_begins(event.optimizer)
        elif isinstance(event, StepEnd):
            self._step_ends(event.optimizer)

    # -- the events of a step ----------------------------------------------------------------------

    def _forward(self, event: ForwardBegin) -> None:
        if not self._goes_on():
            return
        if self._dump is None:
            self._start(event.module)
        dump, tracer = self._dump, self._tracer
        if dump is None or tracer is None or (self._given and event.module is not self._root):
            return
        self._given = True
        if self._root is None:  # not `or`: a module may have no truth value
            self._root = event.module
        args: Any = event.args[0] if len(event.args) == 1 else event.args
        for given in (args, event.kwargs):
            for tensor in dump.batches(given):
                tracer.saw(tensor)

    def _start(self, called: nn.Module) -> None:
        model = whole_model(called)
        rank, ranks = world()
        self._dump = dump = RankDump.claim(self._orders.folder, model, rank, ranks)
        if dump is None:
            self._over_here()  # another process trains under this number: it is heard
            return
        if self._orders.moved is not None:
            self._move(dump, self._orders.moved, eager=ranks == 1 and not may_run_compiled(model))
        dump.weights()
        self._tracer = Tracer(
            hooked(model), dump, enter=self._behind_border, hears=self._hears_forward
        )
        self._tracer.__enter__()
        self._tracer.begin(0)

    def _move(self, dump: RankDump, seed: int, *, eager: bool) -> None:
        orders = self._orders
        rounding = Rounding(seed, coarse=orders.coarse, products=orders.products)
        if eager:
            self._rounding = rounding
            if orders.start is not None:
                dump.perturb_behind(rounding, orders.start)
                return
        for tensor in dump.parts().values():
            tensor.copy_(rounding.moved(tensor, orders.coarse))

    def _hears_forward(self) -> bool:
        return torch.is_grad_enabled() and not self._silent()

    def _behind_border(self, handler: Any, *args: Any) -> Any:
        return None if self._silent() else border.enter(self._shielded, handler, *args)

    def _shielded(self, handler: Any, *args: Any) -> None:
        if tensors_may_be_sharded():
            with no_communication():
                handler(*args)
        else:
            handler(*args)

    def _backward(self, event: BackwardBegin) -> None:
        if not self._goes_on() or self._dump is None:
            return
        self._given = False
        self._kept.clear()  # what was clipped before this pass is not what the step will find
        self._dump.loss(event.roots, event.scale)

    def _clips(self, parameters: list[Tensor]) -> None:
        if self._dump is None or self._silent():
            return
        for parameter in parameters:
            if parameter.grad is not None and id(parameter) not in self._kept:
                self._kept[id(parameter)] = local(parameter.grad).detach().clone()

    def _step_begins(self, stepping: torch.optim.Optimizer) -> None:
        assert self._dump is not None
        mine = {id(p) for group in stepping.param_groups for p in group["params"]}
        # A fused optimizer takes the scaler's factor out by itself.
        self._dump.gradients(mine, self._kept, getattr(stepping, "grad_scale", None))
        parts = self._dump.parts(mine)
        self._movements[id(stepping)] = movement = Movement(parts, self._dump, self._step)
        movement.__enter__()

    def _step_ends(self, stepping: torch.optim.Optimizer) -> None:
        movement = self._movements.pop(id(stepping), None)
        if movement is not None:
            movement.__exit__(None)
        self._kept.clear()
        self._stepped, self._given = True, False
        # Several optimizers share a step: it has ended when the next pass begins.
        if len(hub.optimizers) == 1 and self._step + 1 >= self._orders.steps:
            self._over_here()

    def _goes_on(self) -> bool:
        """A pass begins: of the next step where the last one has been taken."""
        if self._stepped and self._dump is not None and self._tracer is not None:
            self._stepped = False
            self._step += 1
            if self._step >= self._orders.steps:
                self._over_here()
                return False
            self._tracer.begin(self._step)
            self._dump.begin(self._step)
        return True

    # -- the end -----------------------------------------------------------------------------------

    def _over_here(self) -> None:
        self._over = True
        if self._dump is not None:
            self._dump.close()

    def _wait(self) -> None:
        """Other ranks may still need this one. Whoever started the script ends it; nothing of it runs any more."""
        if self._dump is None:
            return
        (self._dump.folder / DONE).touch()
        folder, began = self._orders.folder, time.monotonic()
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except (OSError, ValueError, AttributeError):
                pass
        while folder.is_dir() and not (folder / STOP).exists():
            if time.monotonic() - began > MOST_WAITING:
                break
            time.sleep(0.02)
        os._exit(0)

    def _broken(self, error: BaseException) -> None:
        hub.sink, self._over = None, True
        text = f"{type(error).__name__}: {error}".splitlines()[0]
        (self._orders.folder / FAULT).write_text(f"{text}\n{border.fault or ''}", encoding="utf-8")
