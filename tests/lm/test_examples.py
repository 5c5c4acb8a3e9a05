"""The training examples run as they stand."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

from traindoctor.lm.sources import resolve

EXAMPLES = Path(__file__).parents[2] / "examples"


def test_train_a_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main = runpy.run_path(str(EXAMPLES / "train_a_model.py"))["main"]
    main(tmp_path / "run", 10)
    told = capsys.readouterr().out
    assert "step   10" in told
    assert "nats per character" in told


def test_settings_file() -> None:
    config = resolve(file=EXAMPLES / "words.toml")
    assert (config.data.tokenizer, config.data.vocab_size, config.train.minutes) == (
        "word",
        2000,
        10,
    )
