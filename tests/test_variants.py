"""Sick scripts and their healthy look-alikes through the real runner: the cause is named, or nothing is."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parent / "scripts" / "variants.py"

SICK = {
    "targets twice shifted": "targets-misaligned",
    "targets are inputs": "targets-misaligned",
    "padding counts": "padding-in-loss",
    "same batch": "batch-not-changing",
    "labels in order": "data-not-shuffled",
    "mask off by one": "causal-mask-leak",
    "mask inverted": "causal-mask-leak",
    "mask after softmax": "causal-mask-leak",
    "soft mask": "causal-mask-leak",
    "conv sees ahead": "causal-mask-leak",
    "only itself": "attention-blind",
    "softmax over queries": "attention-softmax-wrong-dim",
    "scale multiplied": "attention-scale-wrong",
    "no skip": "residual-missing",
    "norm over time": "causal-mask-leak",
    "batchnorm": "norm-wrong",
    "one block": "weights-tied-by-mistake",
    "no positions": "position-missing",
    "init large": "init-too-large",
}
HEALTHY = [
    "healthy sdpa",
    "healthy no scale",
    "healthy zero output",
    "healthy alibi",
    "healthy nope",
    "healthy tied",
    "healthy padding",
    "healthy mlm",
    "healthy reversal",
    "healthy labels",
    "healthy batchnorm encoder",
]


def run(folder: Path, name: str) -> dict[str, object]:
    command = [sys.executable, "-m", "traindoctor", "run", "--quiet", "--after", "20"]
    command += ["--out", str(folder / "run"), "--json", str(folder / "verdict.json")]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    subprocess.run(
        [*command, str(SCRIPT), name],
        check=True,
        env=environment,
        capture_output=True,
        timeout=1400,
    )
    return json.loads((folder / "verdict.json").read_text())


@pytest.mark.slow
@pytest.mark.parametrize(("name", "cause"), SICK.items(), ids=str)
def test_the_cause_is_named(tmp_path: Path, name: str, cause: str) -> None:
    verdict = run(tmp_path, name)
    assert verdict["verdict"] == "sick"
    assert verdict["causes"][0]["cause"] == cause  # type: ignore[index]


@pytest.mark.slow
@pytest.mark.parametrize("name", HEALTHY)
def test_look_alikes_are_not_called_sick(tmp_path: Path, name: str) -> None:
    assert run(tmp_path, name)["verdict"] != "sick"
