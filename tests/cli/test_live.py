"""What the terminal shows while a run goes on."""

from __future__ import annotations

import io
import math
import time
from pathlib import Path

import pytest

from made_runs import make_run
from traindoctor.cli import live
from traindoctor.cli.live import LiveView, Status, draw, health, look, sparkline
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
    assert "2 min left" in status.line()
    assert "left" not in Status(100, 2.5, (3.0,), 4.0, (), 3).line()


def test_a_look_at_a_record(tmp_path: Path) -> None:
    status = look(open_record(make_run(tmp_path, steps=60)))
    assert status is not None
    assert status.step == 60
    assert status.exams == 2
    assert status.per_second == pytest.approx(8, rel=0.1)
    first, second = draw(status, 80, 75.0).plain.split("\n")
    assert first.startswith("step 60  loss ")
    assert second == "nothing found in 2 tests so far"


def test_nothing_to_see_before_the_first_loss(tmp_path: Path) -> None:
    RecordWriter(tmp_path).close()
    assert look(open_record(tmp_path)) is None


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def wait_for(text: str, stream: io.StringIO) -> bool:
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        if text in stream.getvalue():
            return True
        time.sleep(0.05)
    return False


@pytest.fixture
def hurried(monkeypatch) -> None:
    monkeypatch.setattr(live, "FIRST_LINE", 0.1)
    monkeypatch.setattr(live, "REDRAW_SECONDS", 0.05)


def test_plain_lines_without_a_terminal(tmp_path: Path, hurried: None) -> None:
    make_run(tmp_path, steps=20)
    stream = io.StringIO()
    view = LiveView(tmp_path, stream=stream)
    assert wait_for("traindoctor: step 20  loss", stream)
    view.stop()
    assert "\x1b" not in stream.getvalue()


def test_a_picture_in_a_terminal_that_is_gone_at_the_end(tmp_path: Path, hurried: None) -> None:
    make_run(tmp_path, steps=20)
    stream = Terminal()
    view = LiveView(tmp_path, stream=stream)
    assert wait_for("nothing found", stream)
    view.stop()
    assert "\x1b[" in stream.getvalue()


def test_quiet_shows_nothing(tmp_path: Path, hurried: None) -> None:
    make_run(tmp_path, steps=20)
    stream = Terminal()
    view = LiveView(tmp_path, quiet=True, stream=stream)
    time.sleep(0.3)
    view.stop()
    assert stream.getvalue() == ""


def test_it_waits_for_a_record_and_stops_without_one(tmp_path: Path, hurried: None) -> None:
    view = LiveView(tmp_path / "not-yet", stream=io.StringIO())
    began = time.monotonic()
    view.stop()
    assert time.monotonic() - began < 2
