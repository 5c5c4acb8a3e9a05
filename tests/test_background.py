"""Work beside the script: never met in `threading`, stopped for a fork, counted."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable

import pytest

from traindoctor.background import Background


def wait_until(true: Callable[[], bool]) -> bool:
    end = time.monotonic() + 60
    while not true() and time.monotonic() < end:
        time.sleep(0.005)
    return true()


def test_it_works_until_it_is_stopped_and_is_in_no_list() -> None:
    before = threading.enumerate()
    calls: list[int] = []
    background = Background(lambda: calls.append(1), every=0.001)
    assert wait_until(lambda: len(calls) > 3)
    assert threading.enumerate() == before
    assert background.stop()
    seen = len(calls)
    time.sleep(0.05)
    assert len(calls) == seen
    assert not background.stop()


def test_its_cpu_time_is_counted() -> None:
    background = Background(lambda: sum(range(20_000)) and None, every=0.001)
    assert wait_until(lambda: background.seconds > 0)
    background.stop()


def test_work_that_fails_ends_it_quietly(capfd: pytest.CaptureFixture[str]) -> None:
    background = Background(lambda: 1 / 0 and None, every=0.001)
    assert wait_until(lambda: not background._alive)
    assert capfd.readouterr() == ("", "")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_fork_finds_no_thread_and_the_parent_goes_on() -> None:
    calls: list[int] = []
    background = Background(lambda: calls.append(1), every=0.001)
    assert wait_until(lambda: bool(calls))
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        count = len(calls)
        time.sleep(0.05)
        os.write(write, b"same" if len(calls) == count else b"more")
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(read, 10) == b"same"
    seen = len(calls)
    assert wait_until(lambda: len(calls) > seen)
    background.stop()
