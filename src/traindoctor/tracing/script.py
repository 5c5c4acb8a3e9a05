"""A side that is a script with its arguments: it is run as it is, traced for its first steps, and ended."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from traindoctor.capture.arming import STARTUP, VARIABLE
from traindoctor.capture.launchers import identity
from traindoctor.compare.dump import read_dump
from traindoctor.compare.tolerance import EPS, Distance, distance
from traindoctor.compare.trace import Key, Trace
from traindoctor.errors import TraindoctorError
from traindoctor.tracing.script_ranks import on_same_rows, together

# Files of a run, as traindoctor.tracing.attend knows them: importing that would import torch.
DONE, STOP, FAULT = "done", "stop", "fault.txt"
LOG = "log.txt"
# How long a script that was told to end may take, before it is asked, and before it is killed.
ENDING_SECONDS = 10.0
LONGEST_QUOTE = 300
# What a launcher says when one of its processes has failed is not why.
LAUNCHERS = ("ChildFailedError", "CalledProcessError")


@dataclass(frozen=True)
class ScriptSide:
    """`train.py --dtype bfloat16`, `-m package.train`, `torchrun --nproc-per-node 2 train.py`, `python train.py`."""

    words: tuple[str, ...]
    title: str

    @classmethod
    def of(cls, text: str) -> ScriptSide:
        """What a user typed as one side."""
        return cls(tuple(_words(text)), text)

    def run(
        self,
        folder: Path,
        steps: int,
        *,
        moved: int | None = None,
        coarse: float = 0.0,
        products: float = 0.0,
        start: Key | None = None,
    ) -> list[Trace]:
        """The first steps, one trace a rank. `moved` is the seed of a perturbed run, `start` the tensor behind which
        it begins. The log stays in the folder."""
        folder.mkdir(parents=True)
        asked = {
            "steps": steps,
            "moved": moved,
            "coarse": coarse,
            "products": products,
            "start": start,
        }
        with (folder / LOG).open("wb") as log:
            try:
                process = subprocess.Popen(
                    self.command(),
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    env=_environment(folder, self.title, asked),
                    start_new_session=True,
                )
            except OSError as error:
                raise TraindoctorError(f"cannot start {self.title!r}: {error.strerror}") from None
            status: int | None = None
            try:
                status = _wait(process, folder)
            finally:
                _end(process, folder)
        return self._traces(folder, status)

    def command(self) -> list[str]:
        """The words with the Python that runs this, where none is named."""
        first = self.words[0]
        if first.endswith(".py") or first == "-m":
            return [sys.executable, *self.words]
        return [_program(first) or first, *self.words[1:]]

    def _traces(self, folder: Path, status: int | None) -> list[Trace]:
        fault = folder / FAULT
        if fault.exists():
            text = fault.read_text(encoding="utf-8").partition("\n")[0]
            raise TraindoctorError(f"{self.title!r} could not be traced: {text}")
        found = sorted(folder.glob("rank-*"), key=lambda rank: int(rank.name.partition("-")[2]))
        traces = [read_dump(rank) for rank in found if (rank / "index.jsonl").is_file()]
        if not traces or not all(trace.of_kind("update") for trace in traces):
            raise TraindoctorError(self._why_nothing(folder, status))
        return [replace(trace, title=self.title) for trace in traces]

    def _why_nothing(self, folder: Path, status: int | None) -> str:
        said = last_words((folder / LOG).read_text(encoding="utf-8", errors="replace"))
        if status:
            ended = (
                f"ended with status {status}" if status > 0 else f"was ended by signal {-status}"
            )
            return f"{self.title!r} {ended} before its first step{f': {said}' if said else ''}"
        return (
            f"{self.title!r} ended without a training step: compare needs a script that calls backward and the step "
            "of a torch optimizer"
        )


@dataclass
class OfScript:
    """What rounding does to a script: run again as it is, then perturbed."""

    side: ScriptSide
    trace: Trace
    folder: Path
    steps: int
    count: int
    own: str
    """The coarsest dtype of the script itself: another side's may be coarser."""
    products: float = 0.0
    repeated = True

    def make(self, coarsest: str, start: Key | None = None) -> list[Mapping[Key, Distance]]:
        unit = EPS[coarsest] if EPS[coarsest] > EPS[self.own] else 0.0
        found: list[Mapping[Key, Distance]] = []
        for draw in range(self.count + 1):
            folder = self.folder / f"draw-{draw}"
            ranks = self.side.run(
                folder,
                self.steps,
                moved=draw or None,
                coarse=unit if draw else 0.0,
                products=self.products if draw else 0.0,
                start=start if draw else None,
            )
            found.append(spread(self.trace, together(ranks, self.trace).trace))
            shutil.rmtree(folder, ignore_errors=True)
        return found


def spread(first: Trace, again: Trace) -> dict[Key, Distance]:
    """How far each tensor is from that of the first run."""
    first, again = on_same_rows(first, again)
    other = again.by_key
    return {
        entry.key: distance(entry.values(), other[entry.key].values())
        for entry in first.entries
        if entry.key in other
        and entry.shape == other[entry.key].shape
        and entry.values().dtype.kind == "f"
    }


def _words(text: str) -> list[str]:
    if os.path.isfile(text) and text.endswith(".py"):
        return [text]  # a path with blanks in it
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise TraindoctorError(f"{text!r} is not a command: {error}") from None
    if not words:
        raise TraindoctorError(
            "one side is empty: give a script with its arguments, file.py:function or a folder"
        )
    first = words[0]
    if first == "-m":
        if len(words) == 1:
            raise TraindoctorError(f"{text!r} names no module: give -m package.module")
    elif first.endswith(".py"):
        if not os.path.isfile(first):
            raise TraindoctorError(f"there is no file {first!r}")
    elif _program(first) is None:
        raise TraindoctorError(
            f"{first!r} is neither a Python script nor a folder or a program: give file.py:function, a dump folder, a recorded run, or a "
            "script with its arguments"
        )
    return words


def _program(name: str) -> str | None:
    """As a shell finds it; else the one beside our Python, whose environment need not be active."""
    beside = Path(sys.executable).parent
    return shutil.which(name) or shutil.which(name, path=str(beside))


def _environment(folder: Path, title: str, asked: Mapping[str, Any]) -> dict[str, str]:
    """Child interpreters find the start-up file and, where they are another Python, this package and nothing else of ours."""
    package = Path(__file__).parents[1]
    link = folder / "package"
    link.mkdir()
    (link / package.name).symlink_to(package, target_is_directory=True)
    settings = {
        "out": str(folder.absolute()),
        "script": title,
        "module": True,  # the title is no path
        "started": "traindoctor.tracing.attend:attend",
        "replay": False,
        "quiet": True,
        "rank": identity(),
        **asked,
    }
    paths = [str(STARTUP), str(link.absolute()), os.environ.get("PYTHONPATH", "")]
    path = os.pathsep.join(filter(None, paths))
    return {**os.environ, VARIABLE: json.dumps(settings), "PYTHONPATH": path}


def _wait(process: subprocess.Popen[bytes], folder: Path) -> int | None:
    """The exit status of a script that ended by itself; None once every rank has seen its steps."""
    while True:
        status = process.poll()
        if status is not None:
            return status
        if (folder / FAULT).exists():
            return None
        done = list(folder.glob(f"rank-*/{DONE}"))
        if done and len(done) >= _ranks(done[0].parent):
            return None
        time.sleep(0.05)


def _ranks(folder: Path) -> int:
    with (folder / "index.jsonl").open(encoding="utf-8") as index:
        return int(json.loads(index.readline())["settings"]["ranks"])


def _end(process: subprocess.Popen[bytes], folder: Path) -> None:
    """Ranks that have seen their steps end by themselves; what is left is asked to end, then killed."""
    (folder / STOP).touch()
    for ask in (None, signal.SIGTERM, signal.SIGKILL):
        if ask is not None and process.poll() is None:
            _signal(process, ask)
        try:
            process.wait(ENDING_SECONDS if list(folder.glob("rank-*")) or ask else 0.0)
            break
        except subprocess.TimeoutExpired:
            continue
    _signal(process, signal.SIGKILL)  # workers that outlive it


def _signal(process: subprocess.Popen[bytes], number: int) -> None:
    try:
        os.killpg(process.pid, number)
    except (ProcessLookupError, PermissionError):
        pass


def last_words(log: str) -> str:
    """Of a script that died, the line that says why."""
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    lines = [re.sub(r"^\[(rank|default)\d+\]:\s*", "", line) for line in lines]
    said = [line for line in lines if re.match(r"[\w.]*(Error|Exception|Interrupt)\b", line)]
    said = [line for line in said if not any(name in line for name in LAUNCHERS)]
    found = (said or lines or [""])[-1]
    return found if len(found) <= LONGEST_QUOTE else found[: LONGEST_QUOTE - 3] + "..."
