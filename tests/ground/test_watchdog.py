"""Whatever is limited ends, and nothing of it reaches the code after it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.overrides import TorchFunctionMode

from traindoctor.exams.agenda import Agenda
from traindoctor.exams.base import Exam
from traindoctor.experiment.patient import Patient
from traindoctor.ground import quiet, watchdog
from traindoctor.ground.stacks import stacks_restored
from traindoctor.ground.watchdog import Overdue, limited

# A hang must fail the test, not the machine: far above anything a busy one needs.
pytestmark = pytest.mark.timeout(300)
MIB = 2**20


def for_ever() -> None:
    while True:
        pass


def swallowing() -> None:
    while True:
        try:
            for_ever()
        except Exception:
            continue


def stubborn() -> None:
    """Catches what it should not, three times."""
    for _ in range(3):
        try:
            for_ever()
        except BaseException:
            continue
    for_ever()


def allocating() -> None:
    """Up to 600 MB, were it let."""
    kept = []
    for _ in range(150):
        kept.append(bytearray(os.urandom(4096) * 1024))
        time.sleep(0.01)
    for_ever()


@pytest.mark.parametrize("work", [for_ever, swallowing, stubborn])
def test_what_never_ends_is_stopped(work: Callable[[], None]) -> None:
    with pytest.raises(Overdue, match=r"longer than 0\.1 s"):
        limited(work, seconds=0.1)
    assert_nothing_is_left()


def test_what_allocates_without_end_is_stopped() -> None:
    with pytest.raises(Overdue, match="MiB of memory"):
        limited(allocating, seconds=200.0, host_bytes=64 * MIB)
    assert_nothing_is_left()


def test_results_and_errors_pass() -> None:
    assert limited(lambda: 7, seconds=60.0) == 7
    assert limited(lambda: 7) == 7
    with pytest.raises(ZeroDivisionError):
        limited(lambda: 1 // 0, seconds=60.0)
    assert_nothing_is_left()


def test_no_exception_ever_reaches_the_code_after_it() -> None:
    """Work that ends just at its limit, a little earlier and a little later, 200 times."""
    stopped = 0
    for turn in range(200):
        seconds = 0.01 + 0.0002 * (turn % 10)

        def until_the_end(
            end: float = time.monotonic() + 2 * seconds + 0.0005 * (turn % 20),
        ) -> int:
            while time.monotonic() < end:
                pass
            return 1

        try:
            limited(until_the_end, seconds=seconds)
        except Overdue:
            stopped += 1
        for _ in range(300):  # a pending exception would come here
            pass
        assert_nothing_is_left()
    assert stopped


def test_an_exception_that_is_on_its_way_when_the_work_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The helper looked while the work ran, and raises when it has ended: the result counts, nothing comes later."""

    def fire_late(watcher: watchdog.Watcher) -> bool:
        bound = watcher.bound
        if bound is None:
            return False
        watcher.firing = True
        while watcher.bound is bound:
            time.sleep(0)
        watchdog._raise_in(watcher.thread, Overdue)
        watcher.firing = False
        return True

    monkeypatch.setattr(watchdog.Watcher, "fire", fire_late)
    for _ in range(30):
        assert limited(lambda: time.sleep(0.03) or "done", seconds=60.0) == "done"  # type: ignore[func-returns-value]
        for _ in range(300):
            time.sleep(0)
        assert_nothing_is_left()


def test_the_inner_limit_is_never_longer() -> None:
    seen = []

    def outer() -> None:
        try:
            limited(for_ever, seconds=1000.0)
        except Overdue as reason:
            seen.append(str(reason))
            raise

    with pytest.raises(Overdue):
        limited(outer, seconds=0.2)
    assert seen
    assert_nothing_is_left()


def test_the_outer_work_goes_on_after_an_inner_one_was_stopped() -> None:
    def outer() -> str:
        with pytest.raises(Overdue):
            limited(for_ever, seconds=0.05)
        return "went on"

    assert limited(outer, seconds=200.0) == "went on"
    assert_nothing_is_left()


def test_another_thread_is_limited_too() -> None:
    outcome: list[str] = []

    def elsewhere() -> None:
        try:
            limited(for_ever, seconds=0.1)
        except Overdue as reason:
            outcome.append(str(reason))

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert outcome


def test_signals_stay_the_scripts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C inside goes through as it is, and a handler of the script's is not cut short."""
    ended = []

    def handler(*_: Any) -> None:
        until = time.monotonic() + 0.3
        while time.monotonic() < until:
            pass
        ended.append(True)

    def work() -> None:
        os.kill(os.getpid(), signal.SIGUSR1)
        for_ever()

    before = signal.signal(signal.SIGUSR1, handler)
    try:
        with pytest.raises(Overdue):
            limited(work, seconds=0.05)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert ended == [True]
    # A shell that starts us in the background makes Python ignore Ctrl-C.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            limited(lambda: os.kill(os.getpid(), signal.SIGINT) or for_ever(), seconds=100.0)
    finally:
        signal.signal(signal.SIGINT, before)
    assert_nothing_is_left()


def test_an_import_is_not_left_half_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "slow_to_import.py").write_text(
        "import time\nend = time.monotonic() + 0.3\nwhile time.monotonic() < end:\n    pass\nwhole = True\n"
    )
    monkeypatch.syspath_prepend(tmp_path)

    def work() -> None:
        import slow_to_import  # noqa: F401

        for_ever()

    with pytest.raises(Overdue):
        limited(work, seconds=0.05)
    assert sys.modules.pop("slow_to_import").whole


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_fork_meets_no_thread_of_ours() -> None:
    """In a process of its own: Python counts all threads before it warns."""
    program = (
        "import os, sys, threading, warnings\n"
        "warnings.simplefilter('error')\n"
        "from traindoctor.ground.watchdog import limited\n"
        "for _ in range(50):\n"
        "    limited(lambda: None, seconds=60.0)\n"
        "    assert len(threading.enumerate()) == 1\n"
        "    tasks = os.listdir('/proc/self/task') if os.path.exists('/proc/self/task') else [0]\n"
        "    assert len(tasks) == 1, tasks\n"
        "    child = os.fork()\n"
        "    if not child:\n"
        "        os._exit(0)\n"
        "    os.waitpid(child, 0)\n"
        "print('done')\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=200
    )
    assert result.stdout == "done\n", result.stderr


class Stays(TorchFunctionMode):
    pass


def test_stacks_are_given_back() -> None:
    before = heights()
    with stacks_restored():
        quiet.quiet().__enter__()
        Stays().__enter__()
        torch.autocast_increment_nesting()
        torch.autograd.graph.saved_tensors_hooks(torch.Tensor.clone, lambda kept: kept).__enter__()
        assert heights() != before
    assert heights() == before


def test_an_exam_that_hangs_is_dropped_and_not_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    notes: list[str] = []
    exam = Exam("made_up", "Hangs", 1.0, lambda patient: for_ever() or {}, needs_tape=False)  # type: ignore[func-returns-value]
    monkeypatch.setattr("traindoctor.exams.agenda.load", lambda name: exam)
    monkeypatch.setattr("traindoctor.exams.agenda.STOPPED_SECONDS", (0.1, 0.1))
    patient = Patient()
    agenda = Agenda(
        patient, step_seconds=lambda: 1e-3, fault=notes.append, exams={"made_up": "made_up"}
    )
    assert agenda.due("made_up", 1, ended=False)
    state = torch.get_rng_state()
    result = agenda.perform("made_up", 1)
    assert result is not None
    assert result.outcome == "refused"
    assert result.reason.startswith("stopped after")
    assert torch.equal(torch.get_rng_state(), state)
    assert not quiet.active()
    assert len(notes) == 1
    assert "not tried again" in notes[0]
    assert not agenda.due("made_up", 1000, ended=False)
    assert not agenda.due("made_up", 1000, ended=True)


def test_the_limit_of_an_exam() -> None:
    agenda = Agenda(Patient(), step_seconds=lambda: 0.1, fault=print, exams={})
    assert agenda.hard_seconds("unknown", float("inf")) == 10.0
    agenda.prices["cheap"], agenda.prices["expensive"] = 0.01, 30.0
    assert agenda.hard_seconds("cheap", float("inf")) == 5.0
    assert agenda.hard_seconds("expensive", float("inf")) == 60.0
    assert 20.0 <= agenda.hard_seconds("expensive", 20.0) <= 25.0


def heights() -> tuple[int, ...]:
    nesting = torch.autocast_increment_nesting()
    torch.autocast_decrement_nesting()
    hooked = torch._C._autograd._top_saved_tensors_default_hooks(True) is not None
    return quiet._depth, quiet._mine.depth, torch._C._len_torch_function_stack(), nesting, hooked


def assert_nothing_is_left() -> None:
    assert not watchdog.watchers


@pytest.fixture(autouse=True)
def no_threads_more() -> Iterator[None]:
    before = threads()
    yield
    for _ in range(500):  # the system removes a thread of the test's own a moment after its end
        if not threads() - before:
            return
        time.sleep(0.01)
    assert not threads() - before


def threads() -> set[str]:
    return set(os.listdir("/proc/self/task")) if os.path.exists("/proc/self/task") else set()


def test_after_a_stop_a_profiled_script_goes_on() -> None:
    """Python's mark of a pending exception that was taken back made every profiled call wait for ever."""

    def endless() -> None:
        while True:
            pass

    with pytest.raises(Overdue):
        limited(endless, seconds=0.05)
    limited(lambda: None, seconds=60.0)
    calls = []
    sys.setprofile(lambda *event: calls.append(1))
    try:
        sorted([3, 1, 2], key=lambda x: -x)
    finally:
        sys.setprofile(None)
    assert calls
