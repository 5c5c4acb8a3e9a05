"""A tiny trained run that several tests read."""

from __future__ import annotations

from pathlib import Path

import pytest

from traindoctor.lm.config import RunConfig
from traindoctor.lm.loop import train
from traindoctor.lm.sources import resolve

TEXT = (
    "The quick brown fox jumps over the lazy dog. Pack my box with five dozen liquor jugs.\n"
    "How vexingly quick daft zebras jump! Sphinx of black quartz, judge my vow.\n"
) * 40

TINY = {
    "layers": 2,
    "heads": 2,
    "width": 32,
    "block": 32,
    "batch": 4,
    "steps": 12,
    "eval_every": 4,
    "eval_blocks": 8,
    "sample_tokens": 8,
    "warmup": 2,
    "device": "cpu",
}


@pytest.fixture(scope="session")
def text_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("text") / "text.txt"
    file.write_text(TEXT)
    return file


@pytest.fixture
def tiny(text_file: Path):
    """`tiny(steps=3)`: the settings of a run that takes a second."""

    def make(**changes: object) -> RunConfig:
        settings = dict(TINY)
        if changes.keys() & {"epochs", "minutes"}:
            del settings["steps"]
        return resolve(given={**settings, "data": (str(text_file),), **changes})

    return make


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory, text_file: Path) -> Path:
    """A finished run, Llama layout. Tests must not write into it."""
    run = tmp_path_factory.mktemp("run") / "tiny"
    train(run, resolve(given={**TINY, "data": (str(text_file),), "kv_heads": 1}))
    return run
