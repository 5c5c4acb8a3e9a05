"""`run --ui`: the page stays after the script, at a terminal alone, and the exit status is the script's own."""

from __future__ import annotations

import os
import pty
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from traindoctor.cli import live

# A script that trains nothing: the page is served all the same, and no torch is imported.
SCRIPT = "import sys; print('done'); sys.exit(7)\n"


def command(folder: Path) -> list[str]:
    (folder / "idle.py").write_text(SCRIPT)
    return [
        sys.executable,
        "-m",
        "traindoctor",
        "run",
        "--ui",
        "--out",
        str(folder / "r"),
        "idle.py",
    ]


def test_without_a_terminal_the_command_ends_with_the_script(tmp_path: Path) -> None:
    done = subprocess.run(
        command(tmp_path), capture_output=True, text=True, cwd=tmp_path, timeout=120
    )
    assert done.returncode == 7
    assert "Ctrl-C" not in done.stderr


def test_at_a_terminal_it_stays_until_ctrl_c(tmp_path: Path) -> None:
    process, terminal = pty.fork()
    if process == 0:
        os.chdir(tmp_path)
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # these tests may run where it is ignored
        words = command(tmp_path)
        os.execv(words[0], words)
    said = read_until(terminal, "Ctrl-C ends it")
    assert "traindoctor: INCONCLUSIVE" in said
    assert os.waitpid(process, os.WNOHANG) == (0, 0)
    os.write(terminal, b"\x03")
    read_until(terminal, None)
    _, status = os.waitpid(process, 0)
    assert os.waitstatus_to_exitcode(status) == 7


def read_until(terminal: int, words: str | None) -> str:
    """What is written up to `words`; without them, up to the end."""
    said = ""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and (words is None or words not in said):
        if not select.select([terminal], [], [], 1.0)[0]:
            continue
        try:
            part = os.read(terminal, 4096)
        except OSError:
            break
        if not part:
            break
        said += part.decode(errors="replace")
    assert words is None or words in said
    return said


def test_where_nobody_reads_nobody_is_kept_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    with open(os.devnull) as nobody:
        monkeypatch.setattr(live.sys, "stdin", nobody)
        assert live.attended() is False
        live.keep_page("http://127.0.0.1:1/")  # comes back at once
