"""What the terminal shows while a run goes on."""

from __future__ import annotations

import contextlib
import fcntl
import io
import math
import os
import pty
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from made_runs import make_run
from traindoctor.cli import live
from traindoctor.cli.live import LiveView, Status, draw, expected_steps, health, look, sparkline
from traindoctor.record import RecordWriter, open_record


@pytest.mark.parametrize(
    ("values", "line"),
    [
        ([], ""),
        ([1.0], "▁"),
        ([2.0, 2.0], "▁▁"),
        ([8.0, 7.0, 6.0, 5.0, 4.0, 3.0, 2.0, 1.0], "█▇▆▅▄▃▂▁"),
        ([1.0, math.nan, 2.0, math.inf], "▁x█x"),
        ([math.nan, math.nan], "xx"),
        ([math.inf, -math.inf, 1.0], "xx▁"),
    ],
)
def test_sparkline(values: list[float], line: str) -> None:
    assert sparkline(values) == line


def test_a_long_course_is_averaged_to_the_width() -> None:
    assert sparkline([float(-i) for i in range(1000)], width=8) == "█▇▆▅▄▃▂▁"


def test_health_says_what_is_proven_or_how_much_was_tested() -> None:
    assert health(("missing-zero-grad",), 9) == "sick: missing-zero-grad"
    assert health((), 1) == "nothing found in 1 test so far"


def test_time_left_needs_a_known_end() -> None:
    status = Status(100, 2.5, (3.0, 2.5), 4.0, (), 3, total=500)
    assert status.left == 100
    assert "2 min left" in draw(status, 120, 10.0).plain
    assert "left" not in draw(Status(100, 2.5, (3.0,), 4.0, (), 3), 120, 10.0).plain


def test_a_look_at_a_record(tmp_path: Path) -> None:
    status = look(open_record(make_run(tmp_path, steps=60)))
    assert status is not None
    assert status.step == 60
    assert status.exams == 2
    assert status.per_second == pytest.approx(8, rel=0.1)
    first, second = draw(status, 80, 75.0).plain.split("\n")
    assert first.startswith("traindoctor  step 60  loss ")
    assert second == "nothing found in 2 tests so far"


def test_nothing_to_see_before_the_first_loss(tmp_path: Path) -> None:
    RecordWriter(tmp_path).close()
    assert look(open_record(tmp_path)) is None


def wait_for(text: str, stream: io.StringIO | Screen) -> bool:
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        if text in stream.getvalue():
            return True
        time.sleep(0.05)
    return False


@pytest.fixture
def hurried(monkeypatch) -> None:
    monkeypatch.setattr(live, "REDRAW_SECONDS", 0.05)


def test_without_a_terminal_the_stream_stays_the_scripts(tmp_path: Path, hurried: None) -> None:
    make_run(tmp_path, steps=20)
    stream = io.StringIO()
    view = LiveView(tmp_path, stream=stream)
    time.sleep(0.3)
    view.stop()
    assert stream.getvalue() == ""


class Screen:
    """A pseudo-terminal of 80 x 24 and all that was written to it."""

    def __init__(self) -> None:
        self.master, handle = pty.openpty()
        fcntl.ioctl(handle, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        self.stream = os.fdopen(handle, "w")
        self.text = ""
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        with contextlib.suppress(OSError):  # the other end is closed
            while data := os.read(self.master, 1 << 16):
                self.text += data.decode()

    def getvalue(self) -> str:
        return self.text


@pytest.fixture
def screen(monkeypatch) -> Iterator[Screen]:
    monkeypatch.setenv("TERM", "xterm-256color")
    made = Screen()
    yield made
    made.stream.close()
    os.close(made.master)


def test_two_lines_stay_at_the_bottom_and_are_gone_at_the_end(
    tmp_path: Path, hurried: None, screen: Screen
) -> None:
    make_run(tmp_path, steps=20)
    view = LiveView(tmp_path, stream=screen.stream)
    assert wait_for("nothing found", screen)
    view.stop()
    assert wait_for("\x1b[r", screen)
    drawn, _, after = screen.text.partition("\x1b[r")
    assert "\x1b[1;22r" in drawn  # what the script writes scrolls above line 23
    assert "\x1b[23;1H" in drawn
    assert "\x1b[24;1H" in drawn
    assert after == "\x1b[23;1H\x1b[J\x1b8"


def test_a_dumb_terminal_gets_nothing(
    tmp_path: Path, hurried: None, screen: Screen, monkeypatch
) -> None:
    monkeypatch.setenv("TERM", "dumb")
    make_run(tmp_path, steps=20)
    view = LiveView(tmp_path, stream=screen.stream)
    time.sleep(0.3)
    view.stop()
    assert screen.text == ""


def scheduled(tmp_path: Path, **settings: object) -> int | None:
    entry = {"calls": 100, "last_step": 99, **settings}
    with contextlib.closing(RecordWriter(tmp_path)) as writer:
        writer.fact("schedule", [{"class": "LinearLR", "total_iters": 7, "calls": 3}, entry])
    return expected_steps(open_record(tmp_path))


def test_the_end_is_read_from_the_schedule(tmp_path: Path) -> None:
    assert scheduled(tmp_path / "a", **{"class": "OneCycleLR", "total_steps": 500}) == 500
    # Stepped once per epoch of 50 steps.
    by_epoch = {"class": "CosineAnnealingLR", "T_max": 10, "calls": 2, "last_step": 99}
    assert scheduled(tmp_path / "b", **by_epoch) == 500
    assert scheduled(tmp_path / "c", **{"class": "LambdaLR"}) is None
    over = {"class": "CosineAnnealingLR", "T_max": 50}
    assert scheduled(tmp_path / "d", **over) is None


SCRIPT = """
import sys, time, torch
print(sys.stdout.isatty(), sys.stderr.isatty(), type(sys.stdout).__name__, file=sys.stderr)
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
end = time.monotonic() + 6
while time.monotonic() < end:
    optimizer.zero_grad()
    model(torch.randn(8, 4)).square().mean().backward()
    optimizer.step()
    time.sleep(0.02)
print("the script is done", flush=True)
"""


@pytest.mark.slow
def test_a_script_in_a_terminal_keeps_its_streams(tmp_path: Path, screen: Screen) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    command = [sys.executable, "-m", "traindoctor", "run", "--after", "1", "script.py"]
    subprocess.run(command, cwd=tmp_path, stdout=screen.stream, stderr=screen.stream, timeout=1200)
    assert wait_for("recorded in", screen)
    assert "True True TextIOWrapper\r\n" in screen.text
    assert "the script is done\r\n" in screen.text
    assert "\x1b[1;22r" in screen.text
    assert screen.text.index("\x1b[r") < screen.text.index("recorded in")


def test_quiet_shows_nothing(tmp_path: Path, hurried: None) -> None:
    make_run(tmp_path, steps=20)
    stream = io.StringIO()
    view = LiveView(tmp_path, quiet=True, stream=stream)
    time.sleep(0.3)
    view.stop()
    assert stream.getvalue() == ""


def test_it_waits_for_a_record_and_stops_without_one(tmp_path: Path, hurried: None) -> None:
    view = LiveView(tmp_path / "not-yet", stream=io.StringIO())
    began = time.monotonic()
    view.stop()
    assert time.monotonic() - began < 2
