"""A warm start is a start: status, streams, tracebacks, folder and environment are those of a fresh process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from warm_python import AT_THE_START, shared, warm_run

SCRIPT = """
import atexit, os, sys
atexit.register(print, "at exit")
print(__name__, __file__, sys.argv, sys.path[0], os.getcwd(), os.environ["WHO"], sys.stdin.read())
print("words", file=sys.stderr)
def fail():
    raise ValueError("on purpose")
fail() if sys.argv[1] == "fail" else sys.exit(int(sys.argv[1]))
"""


@pytest.mark.parametrize("end", ["0", "3", "fail"])
def test_the_same_as_a_fresh_process(tmp_path: Path, end: str) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    arguments = ["script.py", end]
    env = os.environ | AT_THE_START | {"WHO": "me"}
    fresh = subprocess.run(
        [sys.executable, *arguments],
        cwd=tmp_path,
        env=env,
        input="typed",
        capture_output=True,
        text=True,
    )
    warm = warm_run(arguments, folder=tmp_path, env=env, stdin="typed")
    assert (warm.returncode, warm.stdout, warm.stderr) == (
        fresh.returncode,
        fresh.stdout,
        fresh.stderr,
    )


def test_torch_is_there_and_one_run_leaves_nothing_to_the_next(tmp_path: Path) -> None:
    seen = "import sys, os; print('torch' in sys.modules, os.environ.get('LEFT'), hasattr(sys, 'left'))"
    left = warm_run(
        ["-c", seen + "; sys.left = 1; os.environ['LEFT'] = 'x'"], folder=tmp_path
    ).stdout
    assert left == warm_run(["-c", seen], folder=tmp_path).stdout == "True None False\n"


def test_what_does_not_end_is_killed_with_all_that_it_started(tmp_path: Path) -> None:
    program = (
        "import subprocess, sys, time\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        "print(child.pid, flush=True)\ntime.sleep(600)"
    )
    with pytest.raises(subprocess.TimeoutExpired) as late:
        shared().run(["-c", program], folder=tmp_path, timeout=8.0)
    process = Path(f"/proc/{int(late.value.stdout or b'0')}/stat")
    assert not process.exists() or process.read_text().split()[2] == "Z"
    assert warm_run(["-c", "print(1)"], folder=tmp_path).stdout == "1\n"
