"""What the terminal shows while a run goes on: a sparkline of the loss, a health line, the time left.

They stand in the terminal's last two lines, below what the script prints. Where standard error is no terminal nothing
is shown: the script's stream has no line of ours but the verdict.
"""

from __future__ import annotations

import math
import os
import sys
import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from traindoctor.background import Background
from traindoctor.capture.forking import hold_while_forking
from traindoctor.cli.bottom_lines import BottomLines, can_stay

if TYPE_CHECKING:
    from rich.text import Text

    from traindoctor.record import StoredRecord

BARS = "▁▂▃▄▅▆▇█"
REDRAW_SECONDS = 1.0
# Settings of a scheduler that say after how many of its own steps the run is meant to be over. A warm-up
# (LinearLR's total_iters) and a restart (T_0) end earlier than the run.
LENGTHS = {"OneCycleLR": "total_steps", "CosineAnnealingLR": "T_max", "PolynomialLR": "total_iters"}


def open_page(folder: Path, *, quiet: bool = False) -> str:
    """`--ui`: the live page beside the run, and its address."""
    from traindoctor.dashboard.launch import open_browser, serve_in_background

    url = serve_in_background(folder)
    if not quiet:
        print(f"traindoctor: the run is shown at {url}", file=sys.stderr)
    open_browser(url)
    return url


def keep_page(url: str) -> None:
    """The page is served as long as this process lives: at a terminal, until the reader has read it."""
    if not attended():
        return
    try:
        print(f"traindoctor: the run is still shown at {url}; Ctrl-C ends it", file=sys.stderr)
        threading.Event().wait()
    except KeyboardInterrupt:
        print(file=sys.stderr)


def attended() -> bool:
    """Somebody sits at the terminal and waits for this command: it does not run in the background."""
    try:
        return (
            sys.stdin.isatty()
            and sys.stderr.isatty()
            and os.tcgetpgrp(sys.stderr.fileno()) == os.getpgrp()
        )
    except (OSError, ValueError, AttributeError):  # closed streams; systems without process groups
        return False


def sparkline(numbers: Iterable[float], width: int = 24) -> str:
    """Values as a line of bars, bucket means where there are more than fit; x marks a non-finite one."""
    values = list(numbers)
    count = len(values)
    if not count:
        return ""
    width = min(width, count)
    edges = [round(i * count / width) for i in range(width + 1)]
    means = [sum(part) / len(part) for a, b in pairwise(edges) if (part := values[a:b])]
    finite = [v for v in means if math.isfinite(v)]
    if not finite:
        return "x" * len(means)
    low, high = min(finite), max(finite)
    span = (high - low) or 1.0
    return "".join(
        BARS[round((v - low) / span * (len(BARS) - 1))] if math.isfinite(v) else "x" for v in means
    )


def duration(seconds: float) -> str:
    """'42 s', '12 min', '3.4 h'"""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def health(proven: Sequence[str], exams: int) -> str:
    """One line on the patient: what is proven so far, or that nothing is."""
    if proven:
        return "sick: " + ", ".join(proven)
    return f"nothing found in {exams} test{'' if exams == 1 else 's'} so far"


@dataclass(frozen=True)
class Status:
    """One look at a run."""

    step: int
    loss: float
    losses: tuple[float, ...]
    per_second: float
    proven: tuple[str, ...]
    exams: int
    total: int | None = None

    @property
    def left(self) -> float | None:
        """Seconds to go, where the number of steps is known."""
        if not self.total or not self.per_second:
            return None
        return max(0.0, (self.total - self.step) / self.per_second)


def look(record: StoredRecord) -> Status | None:
    """The status of a record that may still grow; None before the first loss."""
    from traindoctor.record.progress import main_loss, num_steps

    record.refresh()
    loss = main_loss(record)
    if loss is None:
        return None
    times = record.get("time.step")
    recent = [] if times is None else times.tail(50).finite().values.tolist()
    seconds = sum(recent) / len(recent) if recent else 0.0
    proven = record.fact("doctor.proven", {})
    return Status(
        step=num_steps(record),
        loss=loss.last,
        losses=tuple(loss.values[-2000:].tolist()),
        per_second=1 / seconds if seconds > 0 else 0.0,
        proven=tuple(proven) if isinstance(proven, dict) else (),
        exams=sum(result.done for result in record.exam_results),
        total=expected_steps(record),
    )


def expected_steps(record: StoredRecord) -> int | None:
    """How many steps the run will have: said by its framework, or by its schedule; None where nobody says."""
    told = record.fact("run.total_steps")
    if isinstance(told, int) and told > 0:
        return told
    schedulers = record.fact("schedule")
    for scheduler in schedulers if isinstance(schedulers, list) else []:
        length = scheduler.get(LENGTHS.get(scheduler.get("class", ""), ""))
        calls, last = scheduler.get("calls", 0), scheduler.get("last_step", 0)
        # A schedule that is over and goes on says nothing; one that is stepped per epoch counts epochs.
        if isinstance(length, int) and 1 <= calls < length:
            steps: int = round(length * (last + 1) / calls)
            return steps
    return None


class LiveView:
    """Shows a run's record at the bottom of the terminal until `stop()`; nothing where `stream` is none."""

    def __init__(self, folder: Path, *, quiet: bool = False, stream: IO[str] | None = None) -> None:
        self.folder = folder
        stream = stream or sys.stderr
        self._began = time.monotonic()
        self._record: StoredRecord | None = None
        self._bottom: BottomLines | None = None
        self._reading = threading.Lock()
        hold_while_forking(self._reading)
        self._background: Background | None = None
        if not quiet and can_stay(stream):
            self._bottom = BottomLines(stream, 2)
            self._background = Background(self._redraw, every=REDRAW_SECONDS)

    def stop(self) -> None:
        if self._background is not None:
            self._background.stop()
        if self._bottom is not None:
            self._bottom.close()
            self._bottom = None

    def _redraw(self) -> None:
        """Imports nothing before the script has: the record is there once it has imported torch."""
        bottom, file = self._bottom, self.folder / "record-0.sqlite"
        if bottom is None or not file.exists():
            return
        from traindoctor.errors import RecordError
        from traindoctor.record import StoredRecord

        with self._reading:
            try:
                self._record = self._record or StoredRecord(file)
            except RecordError:  # its tables are being made
                return
            status = look(self._record)
        if status is not None:
            elapsed = time.monotonic() - self._began
            bottom.show(colored(draw(status, bottom.width, elapsed), bottom.width))


def colored(text: Text, width: int) -> list[str]:
    """The lines of a text with the terminal's color codes, cut to its width."""
    from rich.console import Console

    console = Console(width=width, force_terminal=True, highlight=False, no_color=False)
    with console.capture() as captured:
        console.print(text, end="")
    return captured.get().splitlines()


def draw(status: Status, width: int, elapsed: float) -> Text:
    """Two lines: the course of the loss, and how the run is."""
    from rich.text import Text

    text = Text(no_wrap=True, overflow="ellipsis")
    of_all = f" of {status.total:,}" if status.total else ""
    text.append(f"traindoctor  step {status.step:,}{of_all}  loss {status.loss:.4g}  ")
    text.append(sparkline(status.losses, max(8, min(40, width - 60))), style="cyan")
    text.append(f"  {duration(elapsed)}")
    if status.left is not None:
        text.append(f", {duration(status.left)} left")
    text.append("\n")
    style: Any = "bold red" if status.proven else "green"
    text.append(health(status.proven, status.exams), style=style)
    return text
