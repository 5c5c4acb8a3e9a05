"""`traindoctor generate` on a tiny run."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from traindoctor.cli import cli
from traindoctor.errors import TraindoctorError
from traindoctor.lm.loop import train
from traindoctor.lm.sources import resolve

SETTINGS = {
    "layers": 1,
    "heads": 2,
    "width": 32,
    "block": 32,
    "batch": 4,
    "steps": 5,
    "sample_tokens": 0,
    "device": "cpu",
}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    text = folder / "text.txt"
    text.write_text("All happy families are alike.\n" * 60)
    train(folder / "run", resolve(given={**SETTINGS, "data": (str(text),)}))
    return folder / "run"


def write(run: Path, *arguments: str) -> str:
    result = CliRunner().invoke(cli, ["generate", str(run), *arguments], catch_exceptions=False)
    assert result.exit_code == 0
    return result.output


def test_streamed_and_whole_text_are_the_same(run: Path) -> None:
    options = ("--prompt", "All ", "--max-tokens", "40", "--seed", "3")
    streamed = write(run, *options)
    assert streamed.startswith("All ")
    assert streamed == write(run, *options, "--no-stream")
    assert streamed != write(run, *options[:-1], "4")


def test_every_way_of_choosing_is_accepted(run: Path) -> None:
    options = (
        "--top-k 5 --top-p 0.9 --min-p 0.01 --repetition-penalty 1.1 --temperature 0.7".split()
    )
    assert write(run, "--prompt", "All", "--max-tokens", "9", *options).startswith("All")
    greedy = write(run, "--prompt", "All", "--greedy")
    assert greedy == write(run, "--prompt", "All", "--temperature", "0", "--seed", "9")


def test_many_samples_and_a_stop(run: Path) -> None:
    text = write(run, "--prompt", "All", "--num-samples", "3", "--stop", "a", "--max-tokens", "30")
    parts = text.split("---\n")[1:]
    assert len(parts) == 3
    assert all("a" not in part.split("---")[0] for part in parts)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--max-tokens", "0"], "--max-tokens must be at least 1"),
        (["--num-samples", "0"], "--num-samples must be at least 1"),
        (["--top-p", "2"], "--top-p must be"),
        (["--checkpoint", "99"], "choose best, last or one of"),
    ],
)
def test_bad_input_is_one_sentence(run: Path, arguments: list[str], words: str) -> None:
    result = CliRunner().invoke(cli, ["generate", str(run), *arguments])
    assert isinstance(result.exception, TraindoctorError)
    assert words in str(result.exception)


def test_a_folder_that_is_no_run(tmp_path: Path) -> None:
    result = CliRunner().invoke(cli, ["generate", str(tmp_path)])
    assert "is not a run" in str(result.exception)
