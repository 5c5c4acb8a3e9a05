"""Where all taps report: one switch, one guard, the state that taps share. Importing it imports no torch."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

from traindoctor.events import Event
from traindoctor.replay import quiet as switch
from traindoctor.replay.quiet import quiet as silent

__all__ = ["Hub", "Patches", "hub", "silent"]


class Hub:
    """Process-wide, since the patched torch functions are. Depths are counted over all threads on purpose:
    on CUDA a backward pass runs (and recomputes checkpoints) in threads of its own."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self.sink: Callable[[Event], None] | None = None
        self.module_depth = 0
        self.backward_depth = 0
        self.call_depth = 0
        """Inside a tapped loss, embedding or clip function: its inner calls are no events."""
        self.scaling = 0
        """Inside GradScaler.step."""
        self.inner_calls = 0
        """Module calls below an outermost one: each costs a little that no clock of ours sees."""
        self.inner: Callable[[Any, tuple[Any, ...], dict[str, Any]], None] | None = None
        """In two early steps: who is told of each of them."""
        self.stepping: Any = None
        """The optimizer whose step is running."""
        self.beside: Callable[..., Any] | None = None
        """While a step is taped: what runs compiled code (capture/beside.py)."""
        self.recorder: Any = None
        """While a step is taped: the recorder that hears torch functions; ours are no part of the step."""
        self.switch_compiler: Callable[[Any], Any] = _no_compiler
        """torch's own switch: who compiles the frames that run from now on; it gives who did so far."""
        self.first_backward = True
        self.optimizers: weakref.WeakSet[Any] = weakref.WeakSet()
        self.scaled_roots: dict[int, tuple[weakref.ref[Any], float]] = {}

    @property
    def idle(self) -> bool:
        """Nobody listens, or we are the ones who call torch."""
        return self.sink is None or switch._depth > 0

    def emit(self, event: Event) -> None:
        """Hands an event on. What is done with it reaches no tap again."""
        if self.idle:
            return
        # A compiler that is at work on the script's frames must not start on ours.
        compiler = self.switch_compiler(None)
        if self.recorder is not None:
            self.recorder.stand_up()
        try:
            with silent():
                self.sink(event)  # type: ignore[misc]
        finally:
            if self.recorder is not None:
                self.recorder.sit_down()
            self.switch_compiler(compiler)


def _no_compiler(callback: Any) -> None:
    """Before torch is hooked."""


hub = Hub()


class Patches:
    """Replaced attributes, put back in reverse order."""

    def __init__(self) -> None:
        self._undo: list[Callable[[], None]] = []

    def replace(self, owner: Any, name: str, make: Callable[[Any], Any]) -> None:
        """`make(original)` gives the replacement. An attribute that the owner lacks is left alone."""
        if not hasattr(owner, name):
            return
        own = name in vars(owner)
        original = getattr(owner, name)
        replacement = make(original)
        setattr(owner, name, replacement)

        def undo() -> None:
            if vars(owner).get(name) is not replacement:
                return  # someone patched it after us: taking ours out would take theirs out too
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
