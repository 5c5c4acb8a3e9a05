"""Work of ours that is done again and again beside the script, in a thread that the script never meets.

It is in no list of `threading`, a fork finds it stopped (a child would inherit its locks, and Python warns of threads
there), and the CPU time it takes is counted: while it works the script waits for the interpreter.
"""

from __future__ import annotations

import _thread
import os
import time
import weakref
from collections.abc import Callable

# A fork, or the end, waits so long for work that is under way.
PATIENCE_SECONDS = 5.0


class Background:
    """`Background(work, every=0.5)` calls `work()` so often, from now until `stop()` or until it raises."""

    def __init__(self, work: Callable[[], None], *, every: float) -> None:
        self._work, self._every = work, every
        self.seconds = 0.0
        """CPU time so far; who has read it may set it to 0."""
        self._bell = self._gone = _thread.allocate_lock()
        self._alive = False
        _all.add(self)
        _handle_forks()
        self.start()

    def start(self) -> None:
        self._bell, self._gone = _thread.allocate_lock(), _thread.allocate_lock()
        self._bell.acquire()
        self._gone.acquire()
        self._alive = True
        try:
            _thread.start_new_thread(self._run, (self._bell, self._gone))
        except RuntimeError:  # the interpreter is ending: what waits is written by who closes us
            self._alive = False

    def stop(self) -> bool:
        """Waits for work that is under way; whether it was running."""
        running = self._ring()
        if running:
            self._gone.acquire(timeout=PATIENCE_SECONDS)
        return running

    def _ring(self) -> bool:
        """Tells it to end; whether it was running."""
        running, self._alive = self._alive, False
        if running:
            self._bell.release()
        return running

    def _run(self, bell: _thread.LockType, gone: _thread.LockType) -> None:
        try:
            while not bell.acquire(timeout=self._every):
                began = time.thread_time()
                self._work()
                self.seconds += time.thread_time() - began
        except Exception:  # the border: what shows or stores the run must not disturb it
            self._alive = False
        finally:
            gone.release()


_all: weakref.WeakSet[Background] = weakref.WeakSet()
_paused: list[Background] = []
_handled = False


def _handle_forks() -> None:
    global _handled
    if not _handled and hasattr(os, "register_at_fork"):
        _handled = True
        os.register_at_fork(before=_pause, after_in_parent=_go_on, after_in_child=_forget)


def _pause() -> None:
    """All are told first and waited for together: however many there are, a fork is not held up for longer."""
    _paused.extend(one for one in list(_all) if one._ring())
    until = time.monotonic() + PATIENCE_SECONDS
    for one in _paused:
        one._gone.acquire(timeout=max(0.0, until - time.monotonic()))


def _go_on() -> None:
    while _paused:
        _paused.pop().start()


def _forget() -> None:
    """A child has none of its parent's threads."""
    _paused.clear()
    for one in list(_all):
        one._alive = False
