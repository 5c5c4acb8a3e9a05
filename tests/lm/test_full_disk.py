"""A disk that fills while a checkpoint is written: one sentence, status 2, and the last checkpoint stays whole.

The limit on a file's size stands for the full disk: it needs no rights, and the writing libraries meet a
real refusal of the system in the middle of a file.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from traindoctor.errors import CheckpointError, TraindoctorError
from traindoctor.lm import checkpoint
from traindoctor.lm.config import RunConfig
from traindoctor.lm.files import disk_refusal, write_text, writing
from traindoctor.lm.loop import train

pytest.importorskip("resource", reason="this system has no limits on a file's size")

# The weights of the tiny model take 120 kB and a shard of them 60; all other files of its run under 20.
LIMIT = 40_000
COMMAND = """
import atexit, resource, sys
from traindoctor.cli import main


class Torn:
    def __del__(self):
        sys.stderr.write("Python was torn down\\n")


torn = Torn()
atexit.register(sys.stderr.write, "at exit\\n")
limit = int(sys.argv.pop(1))
if limit:
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
main()
"""


def command(*arguments: str, limit: int = 0, ranks: int = 1) -> list[tuple[int, str]]:
    """Exit status and standard error of `traindoctor ARGUMENTS` in each of some processes."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    processes = []
    for rank in range(ranks):
        world = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(ranks)}
        address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "OMP_NUM_THREADS": "1"}
        processes.append(
            subprocess.Popen(
                [sys.executable, "-c", COMMAND, str(limit), *arguments],
                env={**os.environ, **world, **address},
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
            )
        )
    ends = [process.communicate(timeout=1200)[1] for process in processes]
    return [(process.returncode, errors) for process, errors in zip(processes, ends)]


def is_one_sentence(end: tuple[int, str], *words: str) -> bool:
    status, errors = end
    told = [line for line in errors.splitlines() if line.startswith("traindoctor: ")]
    return (
        status == 2
        and "Traceback" not in errors
        and len(told) == 1
        and all(word in told[0] for word in words)
    )


def files_of(folder: Path) -> dict[str, bytes]:
    return {str(f.relative_to(folder)): f.read_bytes() for f in folder.rglob("*") if f.is_file()}


@pytest.mark.parametrize("ranks", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_inside_a_checkpoint(tmp_path: Path, tiny: Any, ranks: int) -> None:
    train(tmp_path, tiny(steps=4, sample_tokens=0))
    before = files_of(tmp_path / "checkpoints")
    resume = ("train", "--resume", str(tmp_path), "--steps", "8", "--no-doctor", "--quiet")
    first, *others = command(*resume, limit=LIMIT, ranks=ranks)
    assert is_one_sentence(first, "step-00000008: File too large", "was saved before is whole")
    assert ("torn down" in first[1]) == (ranks == 1)
    assert all(is_one_sentence(other, "another process") for other in others)
    assert files_of(tmp_path / "checkpoints") == before
    # With room again the run goes on from what it had.
    train(tmp_path, tiny(steps=8, sample_tokens=0))
    assert checkpoint.checkpoints(tmp_path)[-1].name == "step-00000008"


def test_inside_a_sharded_checkpoint_and_a_damaged_one(tmp_path: Path, tiny: Any) -> None:
    config: RunConfig = tiny(steps=4, sample_tokens=0)
    text = ("--data", *config.data.data)
    options = (
        "--layers 2 --heads 2 --width 32 --block 32 --batch 4 --eval-every 4 --sample-tokens 0"
    )
    common = ("--no-doctor", "--quiet", "--device", "cpu")
    start = ("train", *text, "--out", str(tmp_path), "--shard", "--steps", "4", *options.split())
    assert [status for status, _ in command(*start, *common, ranks=2)] == [0, 0]
    before = files_of(tmp_path / "checkpoints")
    resume = ("train", "--resume", str(tmp_path), "--steps", "8", *common)
    for end in command(*resume, limit=LIMIT, ranks=2):
        assert is_one_sentence(end, "cannot write", "step-00000008: "), end
        # Threads of the process group are still there: one that needs Python in its last moment aborts it.
        assert "at exit" in end[1]
        assert "torn down" not in end[1]
    assert files_of(tmp_path / "checkpoints") == before
    shard = next((tmp_path / "checkpoints").glob("step-00000004/sharded/*.safetensors"))
    shard.write_bytes(shard.read_bytes()[:1000])
    with pytest.raises(CheckpointError, match=r"sharded is damaged .*to begin again"):
        checkpoint.load_run(tmp_path)


def test_the_others_do_not_trip_over_a_rank_that_cannot_go_on(tmp_path: Path, tiny: Any) -> None:
    train(tmp_path, tiny(steps=4, sample_tokens=0))
    (tmp_path / "metrics.csv").unlink()
    (tmp_path / "metrics.csv").mkdir()
    first, second = command("train", "--resume", str(tmp_path), "--steps", "8", ranks=2)
    assert is_one_sentence(first, "metrics.csv")
    assert is_one_sentence(second, "another process")


def test_a_text_that_cannot_be_written_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_text(tmp_path / "a.txt", "old")

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(TraindoctorError, match=r"a.txt: No space left on device"):
        write_text(tmp_path / "a.txt", "new")
    assert files_of(tmp_path) == {"a.txt": b"old"}


def test_what_is_not_the_disk_stays_as_it_is(tmp_path: Path) -> None:
    assert disk_refusal(RuntimeError("shapes differ")) is None
    with pytest.raises(KeyboardInterrupt), writing(tmp_path):
        raise KeyboardInterrupt
    with pytest.raises(RuntimeError, match="inconsistent tensor size"), writing(tmp_path):
        torch.zeros(2) @ torch.zeros(3)
