"""Ways a run ends before its time: Ctrl-C that saves first, and memory that runs out with advice."""

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch

from traindoctor.errors import TraindoctorError


class Interruption:
    """The first Ctrl-C (or SIGTERM) asks the run to end after its step; the second ends it at once."""

    def __init__(self, on_first: Callable[[], None]) -> None:
        self.asked = False
        self._on_first = on_first

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        if threading.current_thread() is not threading.main_thread():
            yield
            return

        def ask(number: int, _: Any) -> None:
            if self.asked:
                signal.signal(number, before[signal.Signals(number)])
                raise KeyboardInterrupt
            self.asked = True
            self._on_first()

        before = {n: signal.signal(n, ask) for n in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


@contextlib.contextmanager
def memory_advice(advice: Callable[[], TraindoctorError]) -> Iterator[None]:
    """Out of memory becomes a sentence that says what to turn."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        raise advice() from error


def is_out_of_memory(error: BaseException) -> bool:
    if isinstance(error, (torch.OutOfMemoryError, MemoryError)):
        return True
    return "can't allocate memory" in str(error) or "not enough memory" in str(error)
