"""A limit of time and memory for whatever of ours runs while the script waits, kept from outside.

    result = limited(lambda: exam(patient), seconds=5.0, host_bytes=2**30)

A helper thread lives as long as the call. Past the limit it raises `Overdue` in the calling thread, again and again until
the call is left, and is gone before `limited` returns or raises. A function and not a `with` block: an exception from
outside may come at the first instruction of an `__exit__`, and nothing of ours could catch it there.
"""

from __future__ import annotations

import _thread
import ctypes
import gc
import math
import os
import signal
import sys
import time
from collections.abc import Callable
from types import FrameType
from typing import TypeVar

from traindoctor.ground.memory_left import device_bytes_used, host_bytes_used

Result = TypeVar("Result")

# How often the clock and the memory are looked at.
LOOK_SECONDS = 0.02
# Until the call is left, `Overdue` is raised again: somebody may have caught it. Twice as long each time, to this.
LONGEST_PAUSE = 1.0
# What is left of a thread after its last line: the system removes it within microseconds.
LAST_LOOKS = 1000

_raise_in = ctypes.pythonapi.PyThreadState_SetAsyncExc
_raise_in.argtypes = (ctypes.c_ulong, ctypes.py_object)
IMPORTING = "<frozen importlib"


class Overdue(BaseException):
    """Past its limit. Not an Exception: what is stopped must not catch it and go on."""


class _Settled(BaseException):
    """Takes the place of an `Overdue` that is no longer wanted."""


class Bound:
    """One limit: when it is past, and of what."""

    def __init__(
        self, seconds: float, host_bytes: float, device_bytes: float, outer: Bound | None
    ) -> None:
        self.began = time.monotonic()
        self.host = host_bytes_used() if host_bytes < math.inf else 0
        self.device = device_bytes_used() if device_bytes < math.inf else 0
        self.until = self.began + seconds
        self.most_on_host = self.host + host_bytes
        self.most_on_device = self.device + device_bytes
        if outer is not None:
            self.until = min(self.until, outer.until)
            self.most_on_host = min(self.most_on_host, outer.most_on_host)
            self.most_on_device = min(self.most_on_device, outer.most_on_device)
        self.overrun: str | None = None
        """Why it was stopped, in words."""
        self.greedy = False
        """It was stopped for its memory."""

    def past(self) -> str | None:
        if time.monotonic() > self.until:
            return f"it took longer than {self.until - self.began:.3g} s"
        if self.most_on_host < math.inf and (used := host_bytes_used()) > self.most_on_host:
            self.greedy = True
            return f"it took {max(0, used - self.host) / 2**20:.0f} MiB of memory"
        if self.most_on_device < math.inf and (used := device_bytes_used()) > self.most_on_device:
            self.greedy = True
            return f"it took {max(0, used - self.device) / 2**20:.0f} MiB of GPU memory"
        return None


class Watcher:
    """The helper thread of one calling thread, and what both know of each other. Each field has one writer."""

    def __init__(self, thread: int) -> None:
        self.thread = thread
        self.bound: Bound | None = None
        """The innermost limit; None: nothing may be raised. The calling thread writes it."""
        self.over = False
        self.firing = False
        """The helper is between its look at `bound` and the raising. The helper writes it."""
        self.fired = False
        """Something was raised: only then is there anything to take back. The helper writes it."""
        self.gone = True
        self.native: int | None = None
        self.bell = _thread.allocate_lock()
        self.bell.acquire()

    def start(self) -> None:
        self.gone = False
        try:
            _thread.start_new_thread(self.watch, ())
        except RuntimeError as error:
            self.gone = True
            # From Python 3.12 on exit handlers start no thread: the script has ended and waits for nothing.
            if "shutdown" not in str(error):
                raise  # what could not be stopped is not begun

    # -- the helper --------------------------------------------------------------------------------

    def watch(self) -> None:
        self.native = _thread.get_native_id()
        try:
            pause, quiet_until = 2 * LOOK_SECONDS, 0.0
            while not self.over and not self.bell.acquire(timeout=LOOK_SECONDS):
                if time.monotonic() >= quiet_until and self.fire():
                    pause = min(LONGEST_PAUSE, 2 * pause)
                    quiet_until = time.monotonic() + pause
        finally:
            self.firing = False
            self.gone = True

    def fire(self) -> bool:
        """Raises in the calling thread, if its innermost limit is past and nothing speaks against it now."""
        bound = self.bound
        if bound is None:
            return False
        try:
            reason = bound.past()
        except Exception as error:  # what cannot be watched is not let run
            reason = f"its limit could not be watched ({type(error).__name__}: {error})"
        if reason is None or must_not_be_stopped(sys._current_frames().get(self.thread)):
            return False
        self.firing = True
        fires = self.bound is bound and not self.over
        if fires:
            bound.overrun = bound.overrun or reason
            self.fired = True
            _raise_in(self.thread, Overdue)
        self.firing = False
        return fires

    # -- the calling thread ------------------------------------------------------------------------

    def leave(self, owner: bool) -> None:
        """After this nothing arrives any more. May be called again where it was interrupted."""
        if owner:
            self.end()
        else:
            self.settle()

    def settle(self) -> None:
        """After `bound` or `over` has changed: nothing that was on its way arrives any more."""
        while self.firing:
            time.sleep(0)
        if self.fired:
            # Taking an exception back would leave Python's mark that one is pending: every call of the script would look
            # for it from then on, and one under a profiler for ever. So another one takes its place, and is caught.
            try:
                _raise_in(self.thread, _Settled)
                while True:
                    time.sleep(0)
            except _Settled:
                self.fired = False

    def end(self) -> None:
        """The helper is gone, for the system too: a fork must not meet it."""
        self.over = True
        if self.bell.locked():
            self.bell.release()
        while not self.gone:
            time.sleep(0)
        self.settle()
        watchers.pop(self.thread, None)
        for _ in range(LAST_LOOKS):
            if self.native is None or not os.path.exists(f"/proc/self/task/{self.native}"):
                return
            time.sleep(0)


watchers: dict[int, Watcher] = {}
"""By calling thread, while a call is limited there."""


def limited(
    work: Callable[[], Result],
    *,
    seconds: float = math.inf,
    host_bytes: float = math.inf,
    device_bytes: float = math.inf,
) -> Result:
    """The result of the work, or `Overdue` with the reason. Bytes are counted from what is used at the beginning.

    Inside another limited call the shorter time of both holds. What cannot be interrupted is one call of C.
    """
    thread = _thread.get_ident()
    found = watchers.get(thread)
    if found is None and min(seconds, host_bytes, device_bytes) == math.inf:
        return work()
    outer = found.bound if found is not None else None
    bound = Bound(seconds, host_bytes, device_bytes, outer)
    owner, watcher = found is None, found or Watcher(thread)
    results: list[Result] = []
    errors: list[BaseException] = []
    # What comes from outside may come anywhere below. But once `bound` is another one it comes at most twice: what was
    # pending, and what was on its way. So three tries to leave, each in the handler of the one before, are enough. No
    # instruction between the begin of a handler and its first assignments can be interrupted.
    try:
        watcher.bound = bound
        if owner:
            watchers[thread] = watcher
            watcher.start()
        results.append(work())
        watcher.bound = outer
        watcher.leave(owner)
    except BaseException as first:
        watcher.bound = outer
        try:
            errors.append(first)
            watcher.leave(owner)
        except BaseException as second:
            try:
                errors.append(second)
                watcher.leave(owner)
            except BaseException as third:
                errors.append(third)
                watcher.leave(owner)
    return outcome(results, errors, bound)


def outcome(results: list[Result], errors: list[BaseException], bound: Bound) -> Result:
    """The script's own exceptions (Ctrl-C) come first, then ours, without the frames that hold what it allocated."""
    for error in errors:
        swallowed = bound.overrun is not None and isinstance(error, Exception)
        if not isinstance(error, Overdue) and not swallowed:
            raise error
    if results:
        return results[0]
    for error in errors:
        error.__traceback__ = error.__context__ = error.__cause__ = None
    if bound.greedy:
        gc.collect()
    raise Overdue(bound.overrun or "it was stopped from outside")


def must_not_be_stopped(frame: FrameType | None) -> bool:
    """A half-done import breaks the module for the script too; a signal's handler is the script's own."""
    handlers = {getattr(signal.getsignal(n), "__code__", None) for n in signal.valid_signals()}
    while frame is not None and frame.f_code is not limited.__code__:
        if frame.f_code.co_filename.startswith(IMPORTING) or frame.f_code in handlers:
            return True
        frame = frame.f_back
    return False


def _in_a_forked_child() -> None:
    """No helper lives here."""
    for watcher in watchers.values():
        watcher.over = watcher.gone = True
    watchers.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_a_forked_child)
