"""The exit status is the script's, whatever becomes of the record: a full disk is one sentence."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest
from scripts_of_capture import Ended, run_python

TRAINS = """
import sys, torch
torch.manual_seed(0)
model = torch.nn.Sequential(*[torch.nn.Linear(4, 4) for _ in range(8)])
optimizer = torch.optim.AdamW(model.parameters(), 0.01)
for step in range(60):
    loss = model(torch.randn(4, 4)).square().mean()
    optimizer.zero_grad(); loss.backward(); optimizer.step()
print(loss.item(), flush=True)
sys.exit(int(sys.argv[1]))
"""
RUN = ("-m", "traindoctor", "run", "--after", "0")


def with_files_up_to(num_bytes: int, folder: Path, *arguments: str) -> Ended:
    """A disk that fills up: no file of the process can grow beyond this."""
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=600,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"},
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, num_bytes)),
    )
    return Ended(done.returncode, done.stdout, done.stderr)


@pytest.mark.parametrize(
    ("num_bytes", "status", "words"),
    [
        (
            2**10,
            0,
            "cannot write a record in",
        ),  # torch itself wants a few bytes for a file of its own
        pytest.param(2**16, 3, "cannot write a record in", marks=pytest.mark.slow),
    ],
)
def test_a_full_disk_is_one_sentence(
    tmp_path: Path, num_bytes: int, status: int, words: str
) -> None:
    (tmp_path / "script.py").write_text(TRAINS)
    bare = run_python(tmp_path, "script.py", str(status))
    options = ("--out", "run", "--json", "verdict.json", "--quiet")
    ours = with_files_up_to(num_bytes, tmp_path, *RUN, *options, "script.py", str(status))
    assert (ours.out, ours.status) == (bare.out, bare.status)
    told = [line for line in ours.err.splitlines() if words in line]
    assert len(told) == 1
    assert "Traceback" not in ours.err
    # The verdict's own file cannot be written either.
    assert len(ours.err.splitlines()) <= 2


# What `traindoctor` is, on a disk on which no folder can be made.
READ_ONLY = """
import errno, os, sys
def mkdir(*args, **kwargs):
    raise OSError(errno.EROFS, "Read-only file system")
os.mkdir = mkdir
sys.argv = ["traindoctor", "run", "--out", "there/run", "script.py"]
from traindoctor.cli import main
main()
"""


def test_a_script_runs_where_no_folder_can_be_made(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text("import sys; print('ran', sys.argv); sys.exit(5)")
    ended = run_python(tmp_path, "-c", READ_ONLY)
    assert (ended.out, ended.status) == ("ran ['script.py']\n", 5)
    assert ended.err.count("\n") == 1
    assert "Read-only file system" in ended.err
    assert "without being watched" in ended.err


@pytest.mark.parametrize("out", ["file", "file/run"])
def test_a_mistake_is_told_before_the_script_runs(tmp_path: Path, out: str) -> None:
    (tmp_path / "script.py").write_text("print('ran')")
    (tmp_path / "file").touch()
    ended = run_python(tmp_path, *RUN, "--out", out, "script.py")
    assert (ended.out, ended.status) == ("", 2)
    assert "choose another" in ended.err
