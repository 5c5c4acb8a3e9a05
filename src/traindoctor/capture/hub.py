"""Where all taps report: one switch, one border, the state that taps share. Importing it imports no torch."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Iterable, Sequence
from types import CodeType, FunctionType
from typing import TYPE_CHECKING, Any, TypeVar

from traindoctor.events import Event
from traindoctor.ground import quiet as switch
from traindoctor.ground.our_ref import OurRef
from traindoctor.ground.quiet import quiet as silent
from traindoctor.ground.torch_private import stand_in
from traindoctor.ground.unseen import unseen

if TYPE_CHECKING:
    from traindoctor.ground.border import Border

__all__ = ["Hub", "Patches", "hub", "silent"]

Made = TypeVar("Made", bound=Event)

# Passes without gradient that are heard after a step: text generation has hundreds, an evaluation is known by these.
EVALUATION_PASSES = 64
# Calls of a step that are noted: enough for the micro-batches of one step.
MOST_NOTES = 64


class Hub:
    """Process-wide, since the patched torch functions are. Depths are counted over all threads on purpose:
    on CUDA a backward pass runs (and recomputes checkpoints) in threads of its own.

    In an attentive step every tap makes its events. In the others only the pulse is heard (backward passes, clipping,
    optimizer steps, rates), and passes without gradient: an evaluation may come after any step.
    """

    def __init__(self) -> None:
        self.border: Border | None = None
        """Set when torch is hooked."""
        self.bodies: list[tuple[FunctionType, CodeType, CodeType]] = []
        """Replacements that are called so often that they have a shorter body for steps that pass in silence."""
        self.reset()

    def reset(self) -> None:
        self.sink: Callable[[Event], None] | None = None
        self.attentive = True
        self.asleep = 0
        """Steps of `clock` that still pass in silence."""
        self.slept = 0
        """And that have passed."""
        self.clock: weakref.ref[Any] | None = None
        """The optimizer whose steps are counted meanwhile."""
        self.passes_asleep = 0
        """Backward passes meanwhile."""
        self.woken: Callable[[Any], bool] | None = None
        self.num_inner = 0
        """Calls that passed through a tap without an event in this attentive step: each has a price no clock sees."""
        self.evaluations_left = EVALUATION_PASSES
        self.batches_looked_at = 0
        """Of a DataLoader, with the examples that they were joined of."""
        self.module_depth = 0
        self.backward_depth = 0
        self.call_depth = 0
        """Inside a tapped loss, embedding or clip function: its inner calls are no events."""
        self.scaling = 0
        """Inside GradScaler.step."""
        self.inner: Callable[[Any, tuple[Any, ...], dict[str, Any]], None] | None = None
        """In two early steps: who is told of each module call below an outermost one."""
        self.stepping: Any = None
        """The optimizer whose step is running."""
        self.beside: Callable[..., Any] | None = None
        """While a step is taped: what runs compiled code (capture/beside.py)."""
        self.recorder: Any = None
        """While a step is taped: the recorder that hears torch functions."""
        self.notes: list[tuple[str, list[OurRef]]] = []
        """In ordinary steps: what modules and losses were given, should this be the step that breaks."""
        self.passed_unheard = False
        """A training pass of this step was called while nobody listened: whoever begins to listen now has missed it."""
        self.first_backward = True
        self.optimizers: weakref.WeakKeyDictionary[Any, Sequence[float]] = (
            weakref.WeakKeyDictionary()
        )
        """Optimizers, with the rates that their groups were made with."""
        self.schedulers: weakref.WeakKeyDictionary[Any, tuple[int, int]] = (
            weakref.WeakKeyDictionary()
        )
        """Learning-rate schedulers, with how far each was when last looked at."""
        self.scaled_roots: dict[int, tuple[OurRef, float]] = {}

    def reset_in_child(self) -> None:
        """A forked child: nobody listens, and whatever was under way is the parent's."""
        self.reset()
        switch.reset_in_child()

    def begin(self, sink: Callable[[Event], None]) -> None:
        """From now on events go to `sink`. A watch that a fault ended in the middle of a step leaves nothing behind."""
        self.sink, self.attentive = sink, True
        self.wake()
        self.stepping, self.scaling, self.call_depth = None, 0, 0
        self.evaluations_left = EVALUATION_PASSES
        self.batches_looked_at = 0
        self.notes.clear()

    @property
    def idle(self) -> bool:
        """Nobody listens, or we are the ones who call torch."""
        return self.sink is None or switch._depth > 0

    def hears(self, *, grad: bool) -> bool:
        """Whether a module, loss or embedding call is worth an event now."""
        if self.sink is None or switch._depth > 0:
            return False
        return self.attentive if grad else self.evaluations_left > 0

    def sleep(self, steps: int, clock: Any) -> None:
        """The next steps of this optimizer pass in silence."""
        self.asleep, self.clock, self.attentive = steps, weakref.ref(clock), False
        self.slept = self.passes_asleep = 0
        for replacement, _, asleep in self.bodies:
            replacement.__code__ = asleep

    def wake(self) -> None:
        self.asleep = self.slept = 0
        for replacement, awake, _ in self.bodies:
            replacement.__code__ = awake

    def step_asleep(self, optimizer: Any) -> None:
        """A step while asleep. Another optimizer begins something new: what follows is heard at once."""
        mine = self.clock is not None and self.clock() is optimizer
        self.slept += 1
        self.asleep = max(1, self.asleep - 1) if self.asleep > 1 else 0
        if (self.asleep and mine) or self.border is None or self.woken is None:
            return
        if not self.border.enter(self.woken, None if mine else optimizer):
            self.asleep = 1  # we may not look now: at the next step again

    def note(self, kind: str, tensors: Iterable[Any]) -> None:
        """Weak references: the script's memory stays its own."""
        if self.sink is not None and not self.attentive and len(self.notes) < MOST_NOTES:
            try:
                data = [OurRef(one) for one in tensors if not one.requires_grad]
                if data:
                    self.notes.append((kind, data))
            except Exception:  # outside the border: what cannot be walked is not noted
                return

    def emit(self, make: Callable[..., Made | None], *args: Any) -> Made | None:
        """Makes an event and hands it on, behind the border. None where it was not heard."""
        if self.sink is None or self.border is None:
            return None
        event: Made | None = self.border.enter(self._hand_on, make, args)
        return event

    def _hand_on(self, make: Callable[..., Made | None], args: tuple[Any, ...]) -> Made | None:
        event = make(*args)
        try:
            if event is not None and self.sink is not None:
                self.sink(event)
        finally:
            if self.recorder is not None:
                self.recorder.settle()
        return event


hub = Hub()


class Patches:
    """Replaced attributes, put back in reverse order."""

    def __init__(self) -> None:
        self._undo: list[Callable[[], None]] = []

    def replace(
        self,
        owner: Any,
        name: str,
        make: Callable[[Any], Any],
        asleep: Callable[[Any], Any] | None = None,
    ) -> None:
        """`make(original)` gives the replacement, `asleep(original)` one whose code it has while nobody listens.

        Both know nothing but `original`. An attribute that the owner lacks is left alone.
        """
        if not hasattr(owner, name):
            return
        original = getattr(owner, name)
        replacement = unseen(make(original))
        if asleep is not None:
            bodies = (replacement, replacement.__code__, unseen(asleep(original)).__code__)
            hub.bodies.append(bodies)
            self._undo.append(functools.partial(hub.bodies.remove, bodies))
        # torch.jit.script compiles what this gives instead of our Python.
        replacement.__prepare_scriptable__ = functools.partial(_given, original)
        self.share(owner, name, replacement)

    def share(self, owner: Any, name: str, replacement: Any) -> None:
        """Puts a replacement that stands elsewhere already under another name of the same thing."""
        own = name in vars(owner)
        original = getattr(owner, name)
        setattr(owner, name, replacement)
        stand_in(original, replacement)

        def undo() -> None:
            if vars(owner).get(name) is not replacement:
                return  # someone patched it after us: taking ours out would take theirs out too
            stand_in(replacement, original)
            if own:
                setattr(owner, name, original)
            else:
                delattr(owner, name)

        self._undo.append(undo)

    def on_undo(self, action: Callable[[], None]) -> None:
        self._undo.append(action)

    def undo(self) -> None:
        while self._undo:
            self._undo.pop()()


def _given(original: Any) -> Any:
    return original
