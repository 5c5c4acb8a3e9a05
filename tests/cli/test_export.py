"""`traindoctor export --format hf`."""

from __future__ import annotations

import json
from pathlib import Path

from click.testing import CliRunner

from traindoctor.cli import cli
from traindoctor.errors import ConfigError
from traindoctor.lm.loop import train
from traindoctor.lm.sources import resolve


def test_hugging_face_folder(tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("Call me Ishmael.\n" * 80)
    settings = {"layers": 1, "heads": 2, "width": 32, "block": 32, "batch": 2, "steps": 2}
    train(tmp_path / "run", resolve(given={**settings, "data": (str(text),), "device": "cpu"}))
    command = ["export", str(tmp_path / "run"), "--format", "hf", "-o", str(tmp_path / "hf")]
    result = CliRunner().invoke(cli, command, catch_exceptions=False)
    assert "llama layout" in result.output
    assert json.loads((tmp_path / "hf" / "config.json").read_text())["model_type"] == "llama"
    assert isinstance(CliRunner().invoke(cli, command).exception, ConfigError)
