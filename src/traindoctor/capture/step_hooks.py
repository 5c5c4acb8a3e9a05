"""torch's global optimizer step hooks: one pair per process, registered once; who hears them changes.

torch runs over its table of hooks while it calls them, and an entry that comes or goes in that moment is an error inside the
script's step. So an arming, or a fault that detaches us, exchanges what the pair calls, never the pair.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.optim.optimizer import (
    Optimizer,
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from traindoctor.ground.hook_handles import own_handles

Before = Callable[[Optimizer, Any, Any], Any]
After = Callable[[Optimizer, Any, Any], None]


class StepHooks:
    """`hear(before, after)` until the function that it gives is called; `expect(action)` for the first step alone."""

    def __init__(self) -> None:
        self._before: Before | None = None
        self._after: After | None = None
        self._first: Callable[[], None] | None = None
        self._handles: list[Any] = []
        self._running = 0

    def hear(self, before: Before, after: After) -> Callable[[], None]:
        self._before, self._after = before, after
        self._register()

        def stop() -> None:
            if self._before == before:
                self._before = self._after = None
                self._leave()

        return stop

    def expect(self, action: Callable[[], None]) -> None:
        """`action` is called at the beginning of the next step; if it starts to hear, it hears this step."""
        self._first = action
        self._register()

    def expect_nothing(self) -> None:
        self._first = None
        self._leave()

    def before(self, optimizer: Optimizer, args: Any, kwargs: Any) -> Any:
        if torch.compiler.is_compiling():
            return None
        self._running += 1
        try:
            if self._first is not None:
                action, self._first = self._first, None
                action()
            return None if self._before is None else self._before(optimizer, args, kwargs)
        finally:
            self._running -= 1

    def after(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if torch.compiler.is_compiling() or self._after is None:
            return
        self._running += 1
        try:
            self._after(optimizer, args, kwargs)
        finally:
            self._running -= 1

    def _register(self) -> None:
        if not self._handles:
            with own_handles():
                self._handles = [
                    register_optimizer_step_pre_hook(self.before),
                    register_optimizer_step_post_hook(self.after),
                ]

    def _leave(self) -> None:
        # Inside a step the pair stays: it calls nobody then.
        if self._before is None and self._first is None and not self._running:
            while self._handles:
                self._handles.pop().remove()


step_hooks = StepHooks()
