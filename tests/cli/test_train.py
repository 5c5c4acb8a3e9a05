"""`traindoctor train` as a user meets it: what it says, what it refuses, and that nothing is lost."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from traindoctor.cli import cli
from traindoctor.errors import TraindoctorError
from traindoctor.record import open_record
from warm_python import warm_run

TEXT = "It is a truth universally acknowledged, that a single man must be in want of a wife.\n" * 60
TINY = (
    "--layers 1 --heads 2 --width 32 --block 32 --batch 4 --steps 6 --eval-every 3 --sample-tokens 12 "
    "--device cpu"
).split()


def call(*arguments: str | Path) -> Result:
    return CliRunner().invoke(cli, [str(a) for a in arguments], catch_exceptions=True)


def refused(*arguments: str | Path) -> str:
    """The one sentence of a refusal; the command line prints it and exits with 2."""
    result = call("train", *arguments)
    assert isinstance(result.exception, TraindoctorError), result.output + repr(result.exception)
    sentence = str(result.exception)
    assert "\n" not in sentence
    return sentence


@pytest.fixture
def text(tmp_path: Path) -> Path:
    file = tmp_path / "my.txt"
    file.write_text(TEXT)
    return file


@pytest.fixture
def run(tmp_path: Path, text: Path) -> Path:
    folder = tmp_path / "run"
    result = call("train", "--data", text, "--out", folder, "--no-doctor", *TINY)
    assert result.exit_code == 0, result.output
    return folder


def test_a_run_from_text_to_what_to_try_next(tmp_path: Path, text: Path) -> None:
    run = tmp_path / "run"
    result = call("train", "--data", text, "--out", run, *TINY)
    assert result.exit_code == 0, result.output
    for words in ("preset small", "width=32", "parameters", "ln ", "validation loss", "at peak"):
        assert words in result.output
    assert "verdict: " in result.output
    assert f"traindoctor generate {run}" in result.output.replace("\n", "")
    assert json.loads((run / "config.json").read_text())["model"]["width"] == 32


def test_the_doctor_of_an_earlier_run_in_the_process_is_not_taken_for_ours(
    tmp_path: Path, text: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from traindoctor import doctor
    from traindoctor.capture.watch import Watch

    monkeypatch.setattr(doctor, "attending", doctor.Doctor(Watch(tmp_path / "earlier")))
    result = call("train", "--data", text, "--out", tmp_path / "run", *TINY)
    assert result.exit_code == 0, result.output
    assert "verdict: " in result.output


def test_under_run_the_trainer_has_the_doctor_that_is_there(tmp_path: Path, text: Path) -> None:
    command = ["-m", "traindoctor", "run", "--after", "0", "--out", "watched"]
    train = ["-m", "traindoctor", "train", "--data", str(text), "--out", "written", *TINY]
    done = warm_run([*command, *train], folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "verdict: " not in done.stdout, "it speaks when the script has ended"
    assert "traindoctor: " in done.stderr
    assert open_record(tmp_path / "watched").fact("run.steps") == 6
    assert open_record(tmp_path / "watched").fact("text.samples")


def test_settings_from_a_file(tmp_path: Path, text: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text(
        f'[data]\ndata = ["{text}"]\ntokenizer = "word"\nvocab-size = 12\n'
        "[model]\nlayers = 1\nheads = 2\nwidth = 32\nblock = 16\n"
        "[train]\nsteps = 3\nbatch = 4\nsample-tokens = 0\n"
    )
    result = call("train", "--config", file, "--out", tmp_path / "run", "--no-doctor")
    assert result.exit_code == 0, result.output
    assert "% unknown" in result.output


def test_resume_goes_on_and_refuses_other_settings(run: Path) -> None:
    result = call("train", "--resume", run, "--steps", "9", "--no-doctor")
    assert result.exit_code == 0, result.output
    assert "from step 6" in result.output
    assert (run / "checkpoints" / "step-00000009").exists()
    assert "--width 32 (now 64)" in refused("--resume", run, "--width", "64")
    assert "--preset" in refused("--resume", run, "--preset", "base")
    assert "leave --out away" in refused("--resume", run, "--out", "elsewhere")


def test_a_run_is_not_written_over_unasked(run: Path, text: Path) -> None:
    before = (run / "config.json").read_bytes()
    assert "already holds a run" in refused("--data", text, "--out", run, *TINY)
    assert (run / "config.json").read_bytes() == before
    result = call(
        "train", "--data", text, "--out", run, *TINY, "--overwrite", "--no-doctor", "--seed", "5"
    )
    assert result.exit_code == 0, result.output
    assert json.loads((run / "config.json").read_text())["train"]["seed"] == 5


def test_a_run_that_cannot_be_replaced_comes_back(tmp_path: Path, run: Path) -> None:
    (tmp_path / "short.txt").write_text("too short")
    parts = {f: f.read_bytes() for f in sorted(run.rglob("*")) if f.is_file()}
    again = ("--out", run, "--overwrite", "--no-doctor", *TINY)
    assert "one block needs 33" in refused("--data", tmp_path / "short.txt", *again)
    assert "there is no file" in refused("--data", tmp_path / "missing.txt", *again)
    assert {f: f.read_bytes() for f in sorted(run.rglob("*")) if f.is_file()} == parts


def test_a_text_that_cannot_be_trained_on_leaves_no_run(tmp_path: Path, text: Path) -> None:
    (tmp_path / "short.txt").write_text("too short")
    new = tmp_path / "new"
    refused("--data", tmp_path / "short.txt", "--out", new, *TINY)
    result = call("train", "--data", text, "--out", new, "--no-doctor", *TINY)
    assert result.exit_code == 0, result.output


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--data", "missing.txt"], "there is no file missing.txt"),
        (["--data", "{empty}"], "is empty"),
        (["--data", "{binary}"], "is a binary file"),
        (["--data", "{short}"], "one block needs 129"),
        (["--preset", "huge"], "there is no preset 'huge'"),
        (["--steps", "-3"], "--steps must be at least 1, not -3"),
        (["--heads", "3"], "3 heads do not divide a width of 128"),
        (["--device", "toaster"], "there is no device 'toaster'"),
        (["--resume", "nowhere"], "there is no run folder nowhere"),
        (["--config", "nowhere.toml"], "cannot read the settings"),
        (["--out", "{short}"], "is a file"),
        (["--epochs", "1", "--minutes", "1"], "give one of them"),
        (["--epochs", "1", "--steps", "5"], "give one of them"),
        (["--minutes", "inf"], "--minutes must be a finite number"),
        (["--seed", "99999999999999999999"], "--seed must be at least 0 and at most"),
        (["--tokenizer", "word", "--vocab-size", "1"], "at least 2, not 1"),
        (["--board", "wandb", "--no-doctor"], "leave --no-doctor away"),
    ],
)
def test_bad_input_is_one_sentence(tmp_path: Path, arguments: list[str], words: str) -> None:
    files = {"empty": b"", "binary": b"\x7fELF\x00\x01" * 99, "short": b"short text"}
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    places = {name: str(tmp_path / name) for name in files}
    given = [argument.format(**places) for argument in arguments]
    if not {"--out", "--resume"} & set(given):
        given += ["--out", str(tmp_path / "run")]
    assert words in refused(*given, "--no-doctor")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_read_only_folder_is_told(tmp_path: Path, text: Path) -> None:
    (tmp_path / "locked").mkdir(mode=0o500)
    out = tmp_path / "locked" / "run"
    assert "cannot write" in refused("--data", text, "--out", out, *TINY)


def test_an_impossible_folder_is_told(tmp_path: Path, text: Path) -> None:
    assert "cannot write" in refused("--data", text, "--out", text / "run", *TINY)


def test_a_damaged_checkpoint_is_told(run: Path) -> None:
    (run / "checkpoints" / "step-00000006" / "model.safetensors").write_bytes(b"nonsense")
    sentence = refused("--resume", run, "--steps", "9")
    assert "is damaged" in sentence
    assert "to go on from step-00000003" in sentence


def test_help_reads_well() -> None:
    result = call("train", "--help")
    assert result.exit_code == 0
    for words in ("Text:", "Model:", "Training:", "Presets:", "traindoctor train --data my.txt"):
        assert words in result.output


def start(*arguments: str | Path, **options: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "traindoctor", *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        **options,  # type: ignore[arg-type]
    )


def wait_for_checkpoint(run: Path, process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 900
    while not list(run.glob("checkpoints/step-*")):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_exit_status_2_and_a_word_on_standard_error(tmp_path: Path) -> None:
    process = start("train", "--data", tmp_path / "none.txt", "--out", tmp_path / "run")
    _, errors = process.communicate(timeout=900)
    assert process.returncode == 2
    assert errors.startswith("traindoctor: there is no file")
    assert "Traceback" not in errors


def test_ctrl_c_saves_and_kill_loses_no_checkpoint(tmp_path: Path, text: Path) -> None:
    run = tmp_path / "run"
    endless = [*TINY, "--steps", "1000000", "--no-doctor"]
    process = start("train", "--data", text, "--out", run, *endless)
    wait_for_checkpoint(run, process)
    process.send_signal(signal.SIGINT)
    out, errors = process.communicate(timeout=900)
    assert process.returncode == 130, errors
    assert f"traindoctor train --resume {run}" in out.replace("\n", "")
    newest = sorted(run.glob("checkpoints/step-*"))[-1]
    process = start("train", "--resume", run, "--no-doctor")
    deadline = time.monotonic() + 900
    while sorted(run.glob("checkpoints/step-*"))[-1] == newest:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    process.kill()  # no handler runs
    process.communicate(timeout=900)
    step = int(sorted(run.glob("checkpoints/step-*"))[-1].name[5:])
    result = call("train", "--resume", run, "--steps", str(step + 2), "--no-doctor")
    assert result.exit_code == 0, result.output


def test_text_from_standard_input(tmp_path: Path) -> None:
    process = start(
        "train",
        *("--data", "-", "--out", tmp_path / "run", *TINY, "--no-doctor"),
        stdin=subprocess.PIPE,
    )
    out, errors = process.communicate(TEXT, timeout=900)
    assert process.returncode == 0, errors
    assert "done" in out


def test_the_verdict_as_json(tmp_path: Path, text: Path) -> None:
    file = tmp_path / "verdict.json"
    result = call("train", "--data", text, "--out", tmp_path / "run", "--json", file, *TINY)
    assert result.exit_code == 0, result.output
    said = json.loads(file.read_text(encoding="utf-8"))
    kept = open_record(tmp_path / "run").fact("verdict")
    assert (said["verdict"], said["reason"]) == (kept["verdict"], kept["reason"])
    assert "leave --no-doctor away" in refused("--json", "-", "--no-doctor", "--data", text, *TINY)
