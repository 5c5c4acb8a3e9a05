"""A small script under the real runner, healthy or with one fault: the verdict names the fault, and only then."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).parents[1] / "scripts" / "tiny_lm.py"

SICK = {
    "lr-too-high": ("lr-too-high",),
    "lr-too-high-later": ("lr-too-high",),  # behind a warm-up
    "lr-too-low": ("lr-too-low",),
    "schedule": ("lr-schedule-wrong",),
    "stuck-warmup": ("lr-schedule-wrong",),
    "missing-params": ("params-not-in-optimizer",),
    "stale-params": ("optimizer-holds-stale-params",),
    "state-reset": ("optimizer-state-reset",),
    "never": ("optimizer-never-steps",),
    "decay": ("weight-decay-too-high",),
    "betas": ("adam-settings-bad",),
    "eps": ("adam-settings-bad",),
    "clip-early": ("clip-ineffective",),
    "clip-too-tight": ("clip-too-tight",),
}
HEALTHY = ("healthy", "frozen", "sgd", "cosine", "warm-up and cosine")


def verdict(tmp_path: Path, fault: str) -> dict[str, Any]:
    out = tmp_path / "verdict.json"
    command = [sys.executable, "-m", "traindoctor", "run", "--out", str(tmp_path / "run")]
    command += ["--json", str(out), "--after", "120", "--quiet", str(SCRIPT), fault]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        check=False,
        timeout=1400,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(out.read_text())


@pytest.mark.slow
@pytest.mark.parametrize("fault", SICK)
def test_the_fault_is_named_first(tmp_path, fault: str) -> None:
    found = verdict(tmp_path, fault)
    assert found["verdict"] == "sick"
    assert found["causes"][0]["cause"] in SICK[fault]


@pytest.mark.slow
@pytest.mark.parametrize("fault", HEALTHY)
def test_look_alikes_are_healthy(tmp_path, fault: str) -> None:
    found = verdict(tmp_path, fault)
    assert found["verdict"] == "healthy", found["causes"]
