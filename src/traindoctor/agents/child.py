"""A command of ours in a process of its own: it reports how far it is, and it ends when nobody waits for it any more."""

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
from anyio.abc import Process

from traindoctor.agents import answers
from traindoctor.errors import RecordError, TraindoctorError
from traindoctor.record import StoredRecord, record_path

LOOK_SECONDS = 1.0
# Between asking a process to end and ending it.
GRACE_SECONDS = 3.0
TAIL_LINES, TAIL_CHARACTERS = 20, 2000

Report = Callable[[float, str], Awaitable[None]]

_running: set[int] = set()
"""Groups of processes that were started and have not ended."""


@dataclass(frozen=True)
class Ended:
    """What a command left behind."""

    status: int
    verdict: dict[str, Any]
    output: str
    """The last lines of what the script and we printed."""


async def judge(
    arguments: Sequence[str], *, folder: Path, record: Path | None, report: Report
) -> Ended:
    """`traindoctor run ...` or `check ...` in a folder. `record` is where it records, to tell how far it is."""
    with tempfile.TemporaryDirectory(prefix="traindoctor-mcp-") as place:
        verdict, output = Path(place) / "verdict.json", Path(place) / "output.txt"
        command, *rest = arguments
        with output.open("wb") as stream:
            process = await anyio.open_process(
                [sys.executable, "-m", "traindoctor", command, "--json", str(verdict), *rest],
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=stream,
                start_new_session=True,
            )
        _running.add(process.pid)
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(_look, record, report)
                status = await process.wait()
                tasks.cancel_scope.cancel()
        finally:
            with anyio.CancelScope(shield=True):
                await _end(process)
            _running.discard(process.pid)
        said = tail(output)
        if not verdict.exists():
            last = said.splitlines()[-1] if said else "it printed nothing"
            text = last.removeprefix("traindoctor: ")
            raise TraindoctorError(f"no verdict, the command ended with status {status}: {text}")
        return Ended(status, json.loads(verdict.read_text(encoding="utf-8")), said)


async def _look(file: Path | None, report: Report) -> None:
    """Reports once a second, until it is cancelled."""
    stored: StoredRecord | None = None
    seconds = 0.0
    while True:
        await anyio.sleep(LOOK_SECONDS)
        seconds += LOOK_SECONDS
        found = None
        if file is not None and file.exists():
            with suppress(RecordError):  # its tables are being made
                stored = stored or StoredRecord(file)
                stored.refresh()
                found = answers.progress(stored)
        # Progress may only rise: it is counted in seconds, the steps are in the message.
        await report(seconds, "the script is starting" if found is None else found[1])


async def _end(process: Process) -> None:
    """The process and all that it started, whether it has ended itself or not."""
    if process.returncode is None:
        _signal(process.pid, signal.SIGTERM)
        with anyio.move_on_after(GRACE_SECONDS):
            await process.wait()
    _signal(process.pid, signal.SIGKILL)
    await process.wait()


def _signal(group: int, number: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)


def end_with_the_server() -> None:
    """A server that is asked to end takes its processes with it: they are groups of their own."""

    def end(number: int, frame: object) -> None:
        for group in _running:
            _signal(group, signal.SIGKILL)
        os._exit(128 + number)

    signal.signal(signal.SIGTERM, end)


def record_file(run: Path) -> Path:
    return record_path(run, 0)


def tail(file: Path) -> str:
    text = file.read_bytes()[-4 * TAIL_CHARACTERS :].decode("utf-8", "replace")
    return "\n".join(text.splitlines()[-TAIL_LINES:])[-TAIL_CHARACTERS:]
