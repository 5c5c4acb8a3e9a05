"""A forked child belongs to the script before any of its code runs: nothing of ours answers in it.

No tap, no tape, no clock, no call of torch.cuda: a child of a process that has used a GPU dies of the first one. A child
that trains is armed anew (capture/arming.py), with nothing of its parent's watch.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable
from typing import Any

# A fork waits so long for one of our threads that is busy inside, then goes on without.
PATIENCE_SECONDS = 2.0

_registered = False
_actions: list[Callable[[], Callable[[], None] | None]] = []
_locks: list[weakref.ref[Any]] = []
_held: dict[int, list[Any]] = {}
"""By thread: several may fork at the same time."""
_inherited: list[object] = []


def in_child(action: Callable[[], None]) -> None:
    """Calls `action` first thing in every forked child; the latest one first. A method keeps its object alive no longer."""
    _register()
    _actions[:] = [known for known in _actions if known() is not None]
    bound = hasattr(action, "__self__")
    _actions.append(weakref.WeakMethod(action) if bound else lambda: action)


def hold_while_forking(lock: Any) -> None:
    """Who has this lock is inside SQLite, whose own locks a child would inherit closed, or has torch in a state of ours."""
    _register()
    _locks[:] = [known for known in _locks if known() not in (None, lock)]
    _locks.append(weakref.ref(lock))


def keep_for_ever(*things: object) -> None:
    """Never destroyed, at the child's end neither: closing an inherited SQLite handle may touch the parent's file."""
    import ctypes

    for thing in things:
        _inherited.append(thing)
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(thing))


def _register() -> None:
    global _registered
    if not _registered:
        _registered = True
        os.register_at_fork(
            before=_before, after_in_parent=_release, after_in_child=_after_in_child
        )


def _before() -> None:
    held = _held.setdefault(threading.get_ident(), [])
    for known in list(_locks):
        lock = known()
        if lock is not None and lock.acquire(timeout=PATIENCE_SECONDS):
            held.append(lock)


def _release() -> None:
    for lock in _held.pop(threading.get_ident(), []):
        lock.release()


def _after_in_child() -> None:
    _release()
    _held.clear()
    _locks.clear()
    for reference in reversed(_actions):
        action = reference()
        if action is not None:
            try:
                action()
            except Exception:  # the border: the child must start whatever happens to us
                continue
