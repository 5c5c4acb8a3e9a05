"""Runs a program plain and attached, as real processes in fresh folders, and says where the two differ.

Needs nothing but Python, torch and traindoctor: the CUDA half runs where there is no pytest.
"""

from __future__ import annotations

import dataclasses
import difflib
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from rows import Launch, Row

HERE = Path(__file__).parent
PROGRAMS = HERE / "programs"
SOURCE = HERE.parents[1] / "src"
# Lines of a difference that are shown, in all and of each side; the rest is more of the same.
SHOWN, SHOWN_OF_EACH, WIDTH = 14, 3, 160
HEADLINE = re.compile(r"^traindoctor: (SICK|HEALTHY|INCONCLUSIVE)\b")
LAST_LINE = re.compile(r"^  recorded (in | +nothing$)")
# The head of a line of torch's own logs: time and process are no part of what is said.
LOG_HEAD = re.compile(r"^(?:[IWE]\d{4} [\d:.]+ +\d+|[A-Z]+:[\d-]+ [\d:]+ \d+:\d+) ", re.MULTILINE)
# Where an object lies is another place in every process.
ADDRESS = re.compile(r"0x[0-9a-f]{6,}")


# Exit status (None: it had to be killed), standard output and standard error.
Ended = tuple[int | None, bytes, bytes]
# Another way to start a process than a fresh one: Python's arguments, folder, environment, input, seconds.
Warm = Callable[[list[str], Path, dict[str, str], bytes, float], Ended]


@dataclass(frozen=True)
class Outcome:
    """All that a run leaves behind."""

    status: int | None
    """None: it had to be killed."""
    out: bytes
    err: bytes
    files: dict[str, bytes]


def environment(device: str) -> dict[str, str]:
    """The same for both runs: one thread, one order of sets, no network."""
    path = [str(PROGRAMS), str(SOURCE), os.environ.get("PYTHONPATH", "")]
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(part for part in path if part),
        "PYTHONHASHSEED": "0",
        "OMP_NUM_THREADS": "1",
        "COLUMNS": "80",
        "HF_HUB_OFFLINE": "1",
        "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
        "TRAINDOCTOR_FIELD_DEVICE": device,
    }


def command(row: Row, record: Path | None) -> list[str]:
    """The plain command, or the attached one where the folder of a record is given."""
    python = [sys.executable, *row.python_options]
    ours: list[str] = []
    if record is not None:
        ours = ["-m", "traindoctor", "run", "--out", str(record)]
        ours += ["--after", "5"] if row.exams else ["--after", "0", "--quiet"]
    if row.launch is Launch.MODULE:
        program = ["-m", row.program.replace("/", ".")]
    else:
        program = [str(PROGRAMS / f"{row.program}.py")]
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    if row.launch is Launch.RANKS:  # each rank is attached by itself
        return [*python, *launcher, *ours, *program, *row.arguments]
    if row.launch is Launch.LAUNCHER:  # the launcher is attached, its ranks join
        return [*python, *ours, *launcher, *program, *row.arguments]
    return [*python, *ours, *program, *row.arguments]


def run(
    row: Row, folder: Path, device: str, record: Path | None = None, warm: Warm | None = None
) -> Outcome:
    """One process, with all that it started: past the time limit the whole group is killed."""
    folder.mkdir(parents=True)
    # What one run compiled must not be found by the other: torch warns where it compiles.
    env = {**environment(device), "TORCHINDUCTOR_CACHE_DIR": f"{folder}-compiled"}
    if warm is None:
        status, out, err = _fresh(row, command(row, record), folder, env)
    else:
        status, out, err = warm(
            command(row, record)[1:], folder, env, row.stdin.encode(), row.seconds
        )
    files = {
        str(file.relative_to(folder)): file.read_bytes()
        for file in sorted(folder.rglob("*"))
        if file.is_file()
    }
    return Outcome(status, out, err, files)


def _fresh(row: Row, words: list[str], folder: Path, env: dict[str, str]) -> Ended:
    process = subprocess.Popen(
        words,
        cwd=folder,
        env=env,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
        # A shell that starts the tests in the background makes everything below it ignore Ctrl-C.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    status: int | None = None
    try:
        out, err = process.communicate(row.stdin.encode(), timeout=row.seconds)
        status = process.returncode
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        out, err = process.communicate()
    return status, out, err


def without_ours(err: str, *, loud: bool) -> tuple[str, int]:
    """Standard error without our lines, and how many verdicts were told. A quiet run has no line of ours.

    A verdict is the block from its headline to the line that names the record.
    """
    if not loud:
        return err, 0
    kept, verdicts, inside = [], 0, False
    for line in err.splitlines(keepends=True):
        if HEADLINE.match(line):
            inside = True
            verdicts += 1
        if inside:
            inside = not LAST_LINE.search(line.rstrip("\n"))
        elif not line.startswith("traindoctor: "):
            kept.append(line)
    return "".join(kept), verdicts


def steps_recorded(record: Path) -> int:
    """Optimizer steps in all records of a run, those of child processes included."""
    from traindoctor.record import open_record

    folders = {file.parent for file in record.rglob("record-*.sqlite")}
    steps = 0
    for folder in folders:
        stored = open_record(folder)
        steps += int(stored.num_steps)
        stored.close()
    return steps


def changed_lines(name: str, plain: str, attached: str) -> list[str]:
    """The places where two texts differ, the first ones whole."""
    before, after = plain.splitlines(), attached.splitlines()
    found: list[str] = []
    for kind, a, b, c, d in difflib.SequenceMatcher(None, before, after, False).get_opcodes():
        if kind != "equal":
            one, two = before[a:b][:SHOWN_OF_EACH], after[c:d][:SHOWN_OF_EACH]
            start = _start(one[0], two[0]) if one and two else 0
            found.append(f"  line {a + 1}:")
            found += [f"    plain    | {line[start : start + WIDTH]}" for line in one]
            found += [f"    attached | {line[start : start + WIDTH]}" for line in two]
    if not found and plain != attached:
        found = ["  in line ends only"]
    return [f"{name} differs:", *found[:SHOWN]] if found else []


def _start(one: str, two: str) -> int:
    """Where to begin to show two lines: long ones often differ far to the right."""
    alike = next((i for i, (a, b) in enumerate(zip(one, two)) if a != b), min(len(one), len(two)))
    return max(0, alike - WIDTH // 2)


def differences(
    row: Row,
    folder: Path,
    device: str = "cpu",
    *,
    control: bool = False,
    warm: Warm | None = None,
) -> list[str]:
    """Runs the row's program both ways; every way in which the attached run is not the plain one, in words.

    The control runs it plain twice: what differs then is the program's own doing.
    """
    plain = run(row, folder / "plain" / "work", device, warm=warm)
    if plain.status != row.status:
        tail = plain.err.decode(errors="replace").splitlines()[-SHOWN:]
        return [
            f"PLAIN ended with {plain.status}, not {row.status}: the program is at fault",
            *tail,
        ]
    if control:
        second = run(row, folder / "attached" / "work", device)
        return _compare(dataclasses.replace(row, exams=False), plain, second, folder)
    record = folder / "record"
    attached = run(row, folder / "attached" / "work", device, record, warm)
    found = _compare(row, plain, attached, folder)
    return found + _watched(row, record)


def _watched(row: Row, record: Path) -> list[str]:
    """A run that nobody watched is the same run for the wrong reason."""
    try:
        steps = steps_recorded(record)
    except Exception as error:  # a record that cannot be read is a finding like any other
        return [f"the record cannot be read: {type(error).__name__}: {error}"]
    if steps >= row.steps:
        return []
    return [f"only {steps} steps recorded, at least {row.steps} expected: not watched"]


def _compare(row: Row, plain: Outcome, attached: Outcome, folder: Path) -> list[str]:
    found = []
    if attached.status is None:
        found.append(f"attached: killed after {row.seconds} s (plain ended by itself)")
    elif attached.status != plain.status:
        found.append(f"exit status: {plain.status} plain, {attached.status} attached")

    def text(outcome: Outcome, stream: str, side: str) -> str:
        said: bytes = getattr(outcome, stream)
        decoded = said.decode(errors="backslashreplace").replace(str(folder / side), "FOLDER")
        return ADDRESS.sub("ADDRESS", LOG_HEAD.sub("TIME PROCESS ", decoded))

    def settled(said: str) -> str:
        """Two processes write to one stream in any order."""
        return "".join(sorted(said.splitlines(True))) if row.several_writers else said

    out = text(plain, "out", "plain"), text(attached, "out", "attached")
    found += changed_lines("standard output", *map(settled, out))
    err, verdicts = without_ours(text(attached, "err", "attached"), loud=row.exams)
    plain_err = text(plain, "err", "plain")
    found += changed_lines("standard error", settled(plain_err), settled(err))
    if row.exams and verdicts != row.verdicts:
        found.append(f"verdicts: {verdicts} told, {row.verdicts} expected")
    for name in sorted(plain.files.keys() ^ attached.files.keys()):
        side = "plain" if name in plain.files else "attached"
        found.append(f"file {name}: only in the {side} run")
    for name in sorted(plain.files.keys() & attached.files.keys()):
        if plain.files[name] != attached.files[name]:
            sizes = f"{len(plain.files[name])} and {len(attached.files[name])} bytes"
            found.append(f"file {name}: other bytes ({sizes})")
    return found
