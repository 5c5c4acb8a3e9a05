"""Runs a command in this process on a file that somebody has spoilt, and says what a user would have seen."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

import click
from click.testing import CliRunner

from traindoctor.cli import cli
from traindoctor.errors import TraindoctorError

# A command on these small files takes a tenth of a second; what has not ended by then does not end.
HANG_SECONDS = 60.0
LONGEST_SENTENCE = 1000


class Hang(BaseException):
    """The command did not come to an end."""


@contextmanager
def limited() -> Iterator[None]:
    """Ends a wait or an endless loop with an exception; pytest's own limit uses another signal."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise Hang

    old = signal.signal(signal.SIGUSR1, stop)
    main = threading.main_thread().ident
    assert main is not None
    timer = threading.Timer(HANG_SECONDS, signal.pthread_kill, (main, signal.SIGUSR1))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        signal.signal(signal.SIGUSR1, old)


def fault_of(*arguments: object) -> str | None:
    """What is wrong with how a command ended; None: an answer, or one sentence and status 2."""
    try:
        with limited():
            result = CliRunner().invoke(cli, [str(a) for a in arguments], standalone_mode=False)
    except Hang:
        return "it hangs"
    error = result.exception
    if error is None:
        return None
    if isinstance(error, (TraindoctorError, click.ClickException)):
        return fault_of_sentence(str(error) or getattr(error, "message", ""))
    if isinstance(error, SystemExit) and error.code in (0, 2):
        return None
    if isinstance(error, Hang):
        return "it hangs"
    return f"{type(error).__name__}: {error}"


def fault_of_sentence(text: str) -> str | None:
    """A message that no user could read."""
    if not text.strip():
        return "it says nothing"
    if "\n" in text.strip() or len(text) > LONGEST_SENTENCE:
        return f"it says more than a sentence: {text[:200]!r}"
    if not text.isprintable() or "Traceback" in text:
        return f"it is not a sentence: {text[:200]!r}"
    return None
