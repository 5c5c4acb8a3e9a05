"""Writes down each torch function of one training step, so that the step can be run again.

    recorder = StepRecorder(step, names)
    recorder.start()            # before the first training forward of the step
    recorder.on(event)          # backward passes, scalars read
    tape = recorder.finish()    # all gradients of the step are there, nothing is updated yet

It listens on after `finish()` (scripts print their loss after the optimizer's step) until `close()`, or until
the next training forward or backward pass; `done` is True then. It keeps no intermediate of the step alive: what
a replay cannot recompute (parameters, data, constants, random states) is copied, within a stated bound.
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor

from traindoctor.errors import ReplayError, in_a_sentence
from traindoctor.events import (
    BackwardBegin,
    BackwardEnd,
    Event,
    ForwardBegin,
    ScalarRead,
    StepBegin,
    StepEnd,
)
from traindoctor.ground import exchange, frames, quiet
from traindoctor.ground.mode_stack import Seat
from traindoctor.ground.names import Names, is_trainable_leaf
from traindoctor.ground.nested import tensors_in
from traindoctor.ground.no_communication import communicates
from traindoctor.ground.torch_private import (
    DisableTorchFunction,
    is_transforming,
    num_dispatch_modes,
)
from traindoctor.ground.unseen import handed_on
from traindoctor.tape.collective_writer import CollectiveWriter
from traindoctor.tape.conventions import IGNORED, written_to
from traindoctor.tape.draft import MAX_BYTES, Draft, changed_between
from traindoctor.tape.draws import Draws
from traindoctor.tape.execute import replay
from traindoctor.tape.operators import SLOPES
from traindoctor.tape.ops import PARAMETER, Read, Root, op_name
from traindoctor.tape.page import Page
from traindoctor.tape.running_functions import RunningFunctions
from traindoctor.tape.step_gradients import world_size
from traindoctor.tape.tape import StepTape
from traindoctor.tape.tensors import TensorTable

# Compiled code rounds in other places. Larger differences of its results (relative, in norm) are no rounding:
# bfloat16 chains differ by 1e-2 at most, another dropout mask by 0.1 and more.
SAME = 0.05
# Torch functions that are still written down after the step: what a script makes of a loss before it prints it.
HEARD_AFTER = 64
# What a function costs by passing through a mode, in seconds: no clock inside it can see that.
PASSING_SECONDS = 3e-6


DISTRIBUTED = "torch.distributed.distributed_c10d"


class StepRecorder:
    """Tapes one step. A fault of its own never reaches the run: it stops recording, and `finish` refuses."""

    def __init__(
        self, step: int, names: Names, *, max_bytes: int = MAX_BYTES, draws: Draws | None = None
    ) -> None:
        self._blank = partial(Page, step, names, max_bytes)
        self.page = self._blank()
        self._earlier: Page | None = None
        """What was written before the script changed weights between two backward passes (SAM)."""
        self.draws = draws or Draws()
        self.collectives: CollectiveWriter | None = None
        """With several ranks, from `start` to `close`."""
        self.failure: str | None = None
        self.seconds = 0.0
        """Own time inside the script's calls, where no other clock of ours stands."""
        self._heard_after = 0
        """Torch functions since the tape is complete."""
        self.done = False
        self._tape: StepTape | None = None
        self._seat: Seat | None = None
        self._paused = 0
        self._in_step = False
        self._transformed = False
        """Something was computed under torch.func (vmap, grad): masks mostly, sometimes the loss."""

    @property
    def draft(self) -> Draft:
        """What is written down so far."""
        return self.page.draft

    @property
    def functions(self) -> RunningFunctions:
        """The autograd.Functions that run."""
        return self.page.functions

    @property
    def tensors(self) -> TensorTable:
        """The tensors that were met."""
        return self.page.tensors

    # -- the life of a recording ------------------------------------------------------------------

    def start(self) -> None:
        """Begins to write down torch functions, in the calling thread."""
        assert not self.done, "a recorder tapes one step"
        self._seat = Seat.take(self._torch_function)
        if world_size() > 1:
            self.collectives = CollectiveWriter(self)
            exchange.install()
            exchange.listen(self.collectives)

    def on(self, event: Event) -> None:
        """Backward passes and reads; everything else is of no interest and costs nothing."""
        if self.done:
            self.close()
            return
        try:
            with quiet.quiet(), torch.no_grad():
                self._on(event)
        except Exception as error:
            self.fail(error)

    def _on(self, event: Event) -> None:
        if isinstance(event, ScalarRead):
            self._read(event.tensor, event.value)
        elif isinstance(event, StepBegin | StepEnd):
            self._in_step = isinstance(event, StepBegin)
        elif self._tape is not None:
            if isinstance(event, BackwardBegin | ForwardBegin):
                self.close()  # the next step, or an evaluation
        elif isinstance(event, BackwardBegin):
            if event.inputs is None:  # torch.autograd.grad adds nothing to what lies in .grad
                self.page.gradients.backward_begins()
            for number, root in enumerate(event.roots):
                given = event.gradients
                self._root(root, event.scale, given[number] if given else None)
            self._paused += 1
        elif isinstance(event, BackwardEnd):
            self._paused = max(0, self._paused - 1)
            self.draft.segment += 1
            if event.results is None:
                self.page.gradients.backward_ended()
            else:
                self.page.gradients.add_results(event.inputs, event.results)

    def finish(self) -> StepTape:
        """The tape of the step. Call it when the step's gradients are complete and nothing is updated yet."""
        if self.failure is None and self._tape is None:
            try:
                with quiet.quiet(), torch.no_grad():
                    self._tape = self._build()
            except Exception as error:
                self.fail(error)
        if self.failure is not None:
            self.close()
            raise ReplayError(self.failure)
        assert self._tape is not None
        return self._tape

    def close(self) -> None:
        """Stops listening. May be called at any time, more than once."""
        self.done = True
        for page in (self.page, self._earlier):
            if page is not None:
                page.clear()
        if self.collectives is not None:
            self.collectives.clear()
            self.collectives = None
            exchange.listen(None)
            exchange.uninstall()
        seat, self._seat = self._seat, None
        if seat is not None:
            seat.leave()
        else:
            Seat.clear()

    @property
    def writing(self) -> bool:
        """Whether torch functions that are called now become part of the tape."""
        return not (self.done or self._paused or self._in_step or self._tape is not None)

    @property
    def in_backward(self) -> bool:
        """A backward pass of the script's runs."""
        return self._paused > 0

    @property
    def in_step(self) -> bool:
        """The optimizer's step runs."""
        return self._in_step

    @property
    def num_passes(self) -> int:
        """Backward passes that have begun."""
        return self.draft.segment + self._paused

    def settle(self) -> None:
        """Off the stack of modes while a backward pass or an optimizer's step runs: nothing of them is taped."""
        if self._seat is None:
            return
        if self._paused or self._in_step:
            self._seat.aside()
        else:
            self._seat.back()

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Off the stack of modes for a while: compiled code must not see us."""
        seat, self._seat = self._seat, None
        stood_up = seat is not None and seat.aside()
        try:
            yield
        finally:
            if seat is not None and not self.done:
                self._seat = seat
                if stood_up:
                    seat.back()
            elif seat is not None and not stood_up:
                seat.leave()

    def adopt(self, result: Any, twin: Any, *, drew: bool) -> None:
        """`result` was computed out of sight, `twin` is the same, computed on the tape: the one stands for the other."""
        with quiet.quiet(), torch.no_grad():
            difference = self.tensors.adopt(result, twin)
            if self.draft.compiled is None or not difference <= self.draft.compiled:
                self.draft.compiled = difference
            if not difference <= SAME and drew:
                self.draft.own_random = True
                self.draft.gap("the compiled code draws random numbers of its own")
            elif not difference <= SAME:
                self.draft.gap(
                    f"the compiled code gives another result than the same code uncompiled ({difference:.1e})"
                )

    def fail(self, error: Exception) -> None:
        if isinstance(error, ReplayError):
            self.failure = str(error)
        else:
            last = traceback.extract_tb(error.__traceback__)[-1]
            self.failure = f"the tape broke: {in_a_sentence(error)} ({last.name})"
        self.close()

    # -- one torch function -----------------------------------------------------------------------

    def _torch_function(
        self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        if self._paused or self._in_step or self.done or quiet.active():
            return handed_on(func, args, kwargs)
        if is_transforming():
            self._transformed = True
            return handed_on(func, args, kwargs)  # what comes out of it is heard again
        if getattr(func, "__module__", None) == DISTRIBUTED:
            return handed_on(func, args, kwargs)  # its process group is heard (ground/exchange.py)
        name = op_name(func)
        if name == "register_hook" and not args[0].is_leaf:
            self.draft.hooked_values.append(frames.here().line or "a value")
        if name in IGNORED or torch.is_inference_mode_enabled() or torch.compiler.is_compiling():
            return handed_on(func, args, kwargs)
        if name == "grad" and getattr(func, "__module__", None) != torch.autograd.__name__:
            return self._gradient(handed_on(func, args, kwargs))
        call, state, began = None, None, time.perf_counter()
        try:
            if num_dispatch_modes() > exchange.mine.depth:  # our own guard is one
                raise ReplayError("the script runs under a TorchDispatchMode of its own")
            with DisableTorchFunction():  # the script's modes hear nothing of ours
                if communicates(func):
                    raise ReplayError(
                        "the step uses functional collectives, which cannot be repeated"
                    )
                if self._tape is not None and self._next_step_begins(name, args, kwargs):
                    self.close()
                else:
                    call = self.page.writer.before(name, args, kwargs)
                state = self.draws.before(name, args, kwargs)
        except Exception as error:
            self.fail(error)
        self.seconds += time.perf_counter() - began + PASSING_SECONDS
        result = handed_on(func, args, kwargs)
        if name in SLOPES and not any(one.requires_grad for one in tensors_in(result)):
            return result  # a number like any other: nothing goes back through it
        if call is not None or state is not None:
            began = time.perf_counter()
            try:
                with DisableTorchFunction():
                    if call is not None:
                        self.page.writer.after(call, name, func, result)
                        if self.draft.changed is not None:
                            self._begin_anew()
                    # What is drawn after the step is drawn for the next one.
                    step = self.draft.step + (self._tape is not None)
                    self.draws.after(state, step, args, kwargs, result)
            except Exception as error:
                self.fail(error)
            self.seconds += time.perf_counter() - began
        return result

    def _begin_anew(self) -> None:
        """A backward pass at other weights may follow (SAM): the last one gives the step's gradient."""
        if self._earlier is not None:
            self._earlier.clear()
        self._earlier, self.page = self.page, self._blank()

    def _last_pass(self) -> Draft:
        """Weights that no pass follows were changed for the next step, or changed back."""
        earlier = self._earlier
        if earlier is not None and not self.draft.roots:
            self.page.clear()
            self.page, self._earlier = earlier, None
        elif earlier is not None and self.page.gradients.began_dirty:
            self.draft.gap(changed_between(earlier.draft.changed))
        return self.draft

    def _next_step_begins(self, name: str, args: Any, kwargs: Any) -> bool:
        """After the step a parameter is used with gradients on: scripts without modules give no other sign.

        An evaluation, or whatever else goes on, is no part of it: a loss is printed within a few functions.
        """
        self._heard_after += 1
        if self._heard_after > HEARD_AFTER:
            return True
        if not torch.is_grad_enabled() or written_to(name, args, kwargs):
            return False
        return any(is_trainable_leaf(tensor) for tensor in tensors_in((args, kwargs)))

    def _gradient(self, gradient: Any) -> Any:
        """`.grad` is no data: clipping and hand-written optimizers are not worth a tape."""
        try:
            with DisableTorchFunction():
                if isinstance(gradient, Tensor) and not gradient.is_sparse:
                    self.tensors.storage(gradient, made=True)
        except Exception as error:
            self.fail(error)
        return gradient

    # -- roots, reads, the tape --------------------------------------------------------------------

    def _root(self, tensor: Tensor, scale: float, gradient: Tensor | None) -> None:
        storage = self.tensors.storage(tensor)
        ref = self.tensors.ref(tensor, None) if storage.depends_on else None
        value = tensor.detach()
        if gradient is None and value.numel() != 1:
            self.draft.gap("backward was called on a tensor that is no scalar")
        total = value.sum() if gradient is None else (value * gradient).sum()
        kept = None if gradient is None else self.draft.copy(gradient)
        number = len(self.draft.ops)
        self.draft.roots.append(Root(ref, float(total), float(scale), kept, number))

    def _read(self, tensor: Tensor, value: float) -> None:
        found = self.tensors.seen(tensor) if tensor.numel() == 1 else None
        if found is None or not found.depends_on & PARAMETER:
            return
        read = Read(self.tensors.ref(tensor, None), float(value))
        # The tape has the same list: what is printed after the step is still added.
        if all(old.ref != read.ref for old in self.draft.reads):
            self.draft.reads.append(read)

    def _build(self) -> StepTape:
        draft = self._last_pass()
        if self._transformed and any(root.ref is None for root in draft.roots):
            raise ReplayError("the loss is computed under torch.func, which cannot be repeated")
        draft.complete = True
        if self.collectives is not None and self.collectives.unfinished:
            draft.gap("the script does not wait for a collective before the step ends")
        tape = StepTape(
            step=draft.step,
            ops=draft.ops,
            geometry=draft.geometry,
            parameters=draft.leaves,
            constants=draft.constants,
            data=draft.data,
            roots=draft.roots,
            given=self.page.gradients.given,
            fresh=self.page.gradients.fresh,
            reads=draft.reads,
            gaps=draft.gaps,
            escapes=draft.escapes,
            bytes=draft.bytes,
            added=self.page.gradients.added,
            world_size=world_size(),
            arrived=self.page.gradients.arrived,
            units=self.page.gradients.units,
            swapped=self.page.gradients.swapped,
            compiled=draft.compiled,
            hooked_values=draft.hooked_values,
        )
        if draft.own_random:
            for root, value in zip(draft.roots, replay(tape).roots):
                root.value = float(value)
        roots = [root.ref for root in draft.roots if root.ref is not None]
        used = {ref for op in tape.needed(roots) for ref in op.inputs}
        for ref, reason in draft.strangers.items():
            if ref in used:
                draft.gap(reason)
                tape.begins_late = True
        return tape
