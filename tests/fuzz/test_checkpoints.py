"""`generate`, `export` and `train --resume` on 200 spoilt run folders, and TOML files of every wrong kind."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from fuzz.checkpoint_variants import NUMBER, STEP, variants
from fuzz.outcome import fault_of
from traindoctor.lm.loop import train
from traindoctor.lm.sources import resolve

PARTS = 5
ALL = list(variants())
TEXT = "The quick brown fox jumps over the lazy dog. " * 60
SIZES = "layers heads width block batch steps eval_every".split()
TOML = {
    "deep": "a = " + "[" * 3000 + "]" * 3000,
    "deep tables": "[" + ".".join("a" * 1500) + "]\n",
    "long number": "layers = " + "9" * 5000,
    "huge number": f"layers = {2**62}",
    "large whole number as a float": f"lr = {'9' * 400}",
    "whole number of 400 digits": f"layers = {'9' * 400}",
    "NaN": "lr = nan",
    "infinite": "dropout = inf",
    "table of a table": "[model.layers]\na = 1",
    "list": "layers = [1, 2]",
    "date": "layers = 2020-01-01",
    "unknown": "evil = 1",
    "preset of a list": "preset = [1]",
    "NUL": "layers = 1\0",
    "not UTF-8": b"layers = \xff",
    "nothing": "",
    "text for a number": 'width = "128"',
    "two lengths": "steps = 1\nepochs = 1",
    "prime width": f"width = {2**31 - 1}",
}


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trained")
    (folder / "text.txt").write_text(TEXT)
    given = dict(zip(SIZES, (1, 2, 16, 16, 2, 2, 2)), sample_tokens=0, eval_blocks=2, device="cpu")
    train(folder / "run", resolve(given={**given, "data": (str(folder / "text.txt"),)}))
    return folder / "run"


def read_in_every_way(run: Path, number: int) -> list[str]:
    """The faults of two of the three commands that read a run; where it goes on, by one step."""
    ways = [
        ("generate", run, "--prompt", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaa!", "--max-tokens", 2),
        ("export", run, "--format", "hf", "-o", run.parent / "hf"),
        ("train", "--resume", run, "--no-doctor", "--quiet", "--steps", 3),
    ]
    done = [ways[2], ways[number % 2]]
    return [fault for way in reversed(done) if (fault := fault_of(*way))]


def test_there_are_enough_of_them() -> None:
    assert len(ALL) == NUMBER
    assert len({name for name, _ in ALL}) == NUMBER


@pytest.mark.parametrize("part", range(PARTS))
def test_no_traceback_and_no_hang(
    tmp_path: Path, good: Path, part: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "fsync", lambda handle: None)  # a slow disk is not what is tested
    faults = {}
    for number in range(part, NUMBER, PARTS):
        name, spoil = ALL[number]
        run = tmp_path / str(number) / "run"
        shutil.copytree(good, run)
        spoil(run)
        if found := read_in_every_way(run, number // PARTS):
            faults[name] = found
        shutil.rmtree(run.parent)
    assert faults == {}


def test_a_good_run_is_read(tmp_path: Path, good: Path) -> None:
    shutil.copytree(good, tmp_path / "run")
    assert read_in_every_way(tmp_path / "run", 0) == []
    assert (tmp_path / "run" / STEP.with_name("step-00000003")).is_dir()


@pytest.mark.parametrize("name", TOML)
def test_settings_of_every_wrong_kind(tmp_path: Path, name: str) -> None:
    content = TOML[name]
    file = tmp_path / "settings.toml"
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    # A text that is not there: no settings, however good, train anything here.
    nothing = tmp_path / "nothing.txt"
    arguments = ("train", "--config", file, "--data", nothing, "--out", tmp_path / "run")
    assert fault_of(*arguments) is None
    assert not (tmp_path / "run").exists()


def test_settings_from_a_pipe_do_not_hang(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "settings.toml")
    assert (
        fault_of("train", "--config", tmp_path / "settings.toml", "--out", tmp_path / "r") is None
    )
