"""TRAINDOCTOR=1 in the environment: what a launcher starts is run as `traindoctor run` would run it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from scripts_of_capture import PLAIN

from traindoctor.capture import launchers
from traindoctor.capture.by_environment import instead

RUN = [sys.executable, "-m", "traindoctor", "run", "--if-trained"]
NO_LAUNCHER = {
    name: value
    for name, value in os.environ.items()
    if not name.startswith(("RANK", "WORLD_SIZE", "SLURM", "OMPI", "PMI", "TRAINDOCTOR"))
}


def started(folder: Path, *command: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {**NO_LAUNCHER, "OMP_NUM_THREADS": "1", **variables}
    return subprocess.run(
        [sys.executable, *command],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )


@pytest.mark.parametrize(
    ("arguments", "typed", "expected"),
    [
        (["train.py", "--lr", "1"], ["python", "train.py", "--lr", "1"], ["train.py", "--lr", "1"]),
        (["-m", "x"], ["python", "-m", "pkg.train", "x"], ["-m", "pkg.train", "x"]),
        (["-m", "x"], ["python", "-mpkg.train", "x"], ["-m", "pkg.train", "x"]),
        (["folder"], ["python", "folder"], ["folder"]),
    ],
)
def test_a_script_becomes_a_watched_one(
    arguments: list[str], typed: list[str], expected: list[str]
) -> None:
    assert instead(arguments, typed, "1") == [*RUN, *expected]


@pytest.mark.parametrize(
    ("typed", "flags"),
    [
        (["python", "-u", "-X", "dev", "train.py"], ["-u", "-X", "dev"]),
        (["python", "-W", "error", "train.py"], ["-W", "error"]),
        (["python", "-Bum", "train"], ["-Bu"]),
        (["python", "-Bumtrain"], ["-Bu"]),
    ],
)
def test_the_interpreter_keeps_its_options(typed: list[str], flags: list[str]) -> None:
    first = "train.py" if typed[-1] == "train.py" else "-m"
    command = instead([first], typed, "1")
    assert command is not None
    assert command[1 : 1 + len(flags)] == flags
    assert command[1 + len(flags) : 4 + len(flags)] == ["-m", "traindoctor", "run"]
    assert command[-1] in ("train.py", "train")


@pytest.mark.parametrize(
    ("arguments", "typed"),
    [
        (["-c"], ["python", "-c", "print(1)"]),
        ([""], ["python"]),
        (["-"], ["python", "-"]),
        (["/bin/traindoctor", "run", "x.py"], ["python", "/bin/traindoctor", "run", "x.py"]),
        (["-m", "ui"], ["python", "-m", "traindoctor", "ui"]),
    ],
)
def test_what_is_no_script_is_left_alone(arguments: list[str], typed: list[str]) -> None:
    assert instead(arguments, typed, "1") is None


def test_zero_is_no_and_options_are_passed_on() -> None:
    assert instead(["a.py"], ["python", "a.py"], "0") is None
    assert instead(["a.py"], ["python", "a.py"], "--after 60") == [*RUN, "--after", "60", "a.py"]


def test_a_script_is_watched_and_is_the_same_run(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(PLAIN + "\nraise SystemExit(3)\n")
    plain = started(tmp_path, "train.py")
    ours = started(tmp_path, "train.py", TRAINDOCTOR="--after 5 --json verdict.json")
    assert (ours.stdout, ours.returncode) == (plain.stdout, plain.returncode)
    assert plain.returncode == 3
    assert plain.stderr == ""
    assert json.loads((tmp_path / "verdict.json").read_text())["steps"] == 30
    assert "recorded in" in ours.stderr


def test_a_program_that_trains_nothing_sees_nothing(tmp_path: Path) -> None:
    (tmp_path / "tool.py").write_text("import sys\nprint(sys.argv, __name__)\n")
    done = started(tmp_path, "tool.py", "a", TRAINDOCTOR="1")
    assert (done.stdout, done.stderr) == ("['tool.py', 'a'] __main__\n", "")
    assert sorted(file.name for file in tmp_path.iterdir()) == ["tool.py"]


def test_options_that_cannot_be_read_are_said_and_the_script_runs(tmp_path: Path) -> None:
    (tmp_path / "tool.py").write_text("print('ran')\n")
    done = started(tmp_path, "tool.py", TRAINDOCTOR="--json 'half")
    assert done.stdout == "ran\n"
    assert done.stderr.count("\n") == 1
    assert "TRAINDOCTOR" in done.stderr


RANKS = """
import os, torch, torch.distributed as dist
dist.init_process_group("gloo")
torch.manual_seed(dist.get_rank())
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for step in range(12):
    x = torch.randn(16, 8)
    loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
dist.destroy_process_group()
"""


def test_ranks_of_a_launcher_are_one_run_with_one_verdict(tmp_path: Path) -> None:
    (tmp_path / "ranks.py").write_text(RANKS)
    launch = ("-m", "torch.distributed.run", "--nproc-per-node", "2", "ranks.py")
    done = started(tmp_path, *launch, TRAINDOCTOR="--after 5")
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("recorded in") == 1
    (run,) = (tmp_path / "runs").iterdir()
    assert {file.name for file in run.glob("*.sqlite")} == {"record-0.sqlite", "record-1.sqlite"}
    assert "SICK, gradients-not-synced" in done.stderr


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, (None, 0, 1)),
        ({"RANK": "1"}, (None, 0, 1)),
        ({"RANK": "1", "WORLD_SIZE": "two"}, (None, 0, 1)),
        ({"RANK": "1", "WORLD_SIZE": "4"}, ("RANK=1", 1, 4)),
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "8"}, (None, 0, 1)),
        ({"SLURM_PROCID": "3", "SLURM_STEP_NUM_TASKS": "8"}, ("SLURM_PROCID=3", 3, 8)),
        (
            {"SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "2", "RANK": "9", "WORLD_SIZE": "16"},
            ("RANK=9", 9, 16),
        ),
        (
            {"OMPI_COMM_WORLD_RANK": "2", "OMPI_COMM_WORLD_SIZE": "4"},
            ("OMPI_COMM_WORLD_RANK=2", 2, 4),
        ),
    ],
)
def test_the_launcher_numbers_its_processes(
    monkeypatch: pytest.MonkeyPatch,
    variables: dict[str, str],
    expected: tuple[str | None, int, int],
) -> None:
    for name in set(os.environ) - set(NO_LAUNCHER):
        monkeypatch.delenv(name)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert (launchers.identity(), launchers.rank(), launchers.world_size()) == expected


def test_ranks_of_a_slurm_step_share_a_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in set(os.environ) - set(NO_LAUNCHER):
        monkeypatch.delenv(name)
    assert launchers.job() is None
    monkeypatch.setenv("SLURM_STEP_NUM_TASKS", "2")
    monkeypatch.setenv("SLURM_JOB_ID", "4711")
    monkeypatch.setenv("SLURM_STEP_ID", "0")
    jobs = []
    for rank in ("0", "1"):
        monkeypatch.setenv("SLURM_PROCID", rank)
        jobs.append(launchers.job())
    assert jobs == ["4711-0", "4711-0"]


STARTER = """
import os, subprocess, sys
variables = {**os.environ, "PYTHONPATH": os.getcwd()}
child = subprocess.Popen([sys.executable, "worker.py"], env=variables, stdout=subprocess.PIPE, text=True)
for line in iter(child.stdout.readline, "trained\\n"):
    print(line, end="")
child.kill()
print(child.wait())
"""


def test_a_worker_with_its_own_path_that_is_killed_at_its_end_is_judged(tmp_path: Path) -> None:
    """As Ray starts and ends those that train."""
    (tmp_path / "starter.py").write_text(STARTER)
    wait = "\nimport time\ntime.sleep(1.5)\nprint('trained', flush=True)\ntime.sleep(60)\n"
    (tmp_path / "worker.py").write_text(PLAIN + wait)
    plain = started(tmp_path, "starter.py")
    ours = started(tmp_path, "starter.py", TRAINDOCTOR="--after 5 --json verdict.json")
    assert ours.stdout == plain.stdout
    assert ours.stdout.endswith("-9\n")
    told = json.loads((tmp_path / "verdict.json").read_text())
    assert told["steps"] == 30
    # As far as the tests had come when it was killed.
    assert told["verdict"] in {"healthy", "inconclusive"}
