from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from traindoctor.checks.base import Clear, Finding, NotApplicable, NotJudged, Outcome
from traindoctor.checks.model.checkpoint_not_loaded import checkpoint_not_loaded
from traindoctor.record import make_record

WRAPPED = {
    "module": "Encoder",
    "line": "train.py:12",
    "asked": 38,
    "given": 38,
    "loaded": 0,
    "pairs": 38,
    "own_prefix": "",
    "given_prefix": "module.",
    "left": 38,
    "step": 0,
}


def judged(*calls: dict[str, Any]) -> Outcome:
    return checkpoint_not_loaded(make_record(facts={"env": {}, "weights.loaded": list(calls)}))


def found(**changed: Any) -> Finding:
    finding = judged(WRAPPED | changed)
    assert isinstance(finding, Finding)
    return finding


def test_names_with_a_prefix_that_the_model_lacks() -> None:
    finding = found()
    assert (finding.grade, finding.status, finding.confidence) == ("exact", "confirmed", 1.0)
    assert finding.summary == (
        "load_state_dict(strict=False) loaded 0 of 38 tensors of Encoder: the checkpoint's names begin with "
        "`module.` and the model's do not"
    )
    assert (finding.line, finding.since_step) == ("train.py:12", 0)
    assert '`{k.removeprefix("module."): v for k, v in state.items()}`' in finding.remedy
    assert "missing_keys" in finding.remedy


def test_the_other_way_round_and_two_prefixes() -> None:
    wrapper = found(own_prefix="model.", given_prefix="")
    assert wrapper.summary.endswith(
        "the model's names begin with `model.` and the checkpoint's do not"
    )
    assert '`{"model." + k: v for k, v in state.items()}`' in wrapper.remedy
    both = found(own_prefix="encoder.", given_prefix="backbone.")
    assert both.summary.endswith("names begin with `backbone.` and the model's with `encoder.`")
    assert '`{"encoder." + k.removeprefix("backbone."): v for' in both.remedy


def test_a_body_is_left_behind_beside_its_head_and_inside_a_larger_checkpoint() -> None:
    assert found(asked=40, loaded=2).since_step == 0
    assert found(given=120).since_step == 0
    assert found(asked=120, step=40).since_step == 40


def test_the_largest_of_several_calls_is_told() -> None:
    small = WRAPPED | {"line": "train.py:9", "asked": 2, "given": 2, "pairs": 2, "left": 2}
    finding = judged(small, WRAPPED)
    assert isinstance(finding, Finding)
    assert finding.line == "train.py:12"


@pytest.mark.parametrize(
    "changed",
    [
        {"left": 0},  # copied by hand since
        {"left": 12},  # but for a part
        {"loaded": 30, "asked": 38, "pairs": 8, "left": 8},  # another component
        {"pairs": 6, "left": 6},  # layers that two models share
    ],
)
def test_silent_where_weights_arrived_or_few_stand_under_another_name(
    changed: dict[str, int],
) -> None:
    assert isinstance(judged(WRAPPED | changed), Clear)


def test_silent_where_everything_arrived() -> None:
    """Also where a head is new or adapters are loaded: no call has a partner for what is missing."""
    assert isinstance(judged(), Clear)


def test_nothing_loaded_is_not_applicable_and_nothing_watched_not_judged() -> None:
    assert isinstance(checkpoint_not_loaded(make_record(facts={"env": {}})), NotApplicable)
    assert isinstance(checkpoint_not_loaded(make_record()), NotJudged)


def verdict(folder: Path, script: str) -> dict[str, Any]:
    (folder / "tune.py").write_text(script)
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "traindoctor",
            "run",
            "--quiet",
            "--json",
            "verdict.json",
            "tune.py",
        ],
        cwd=folder,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    told: dict[str, Any] = json.loads((folder / "verdict.json").read_text())
    return told


TUNE = """
import torch
from torch import nn

torch.manual_seed(0)
truth = torch.randn(16, 10)

def net():
    return nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 10))

def train(model, steps):
    optimizer = torch.optim.AdamW(model.parameters(), 3e-3)
    for step in range(steps):
        x = torch.randn(64, 16)
        loss = nn.functional.cross_entropy(model(x), (x @ truth).argmax(1))
        optimizer.zero_grad(); loss.backward(); optimizer.step()
        print(step, loss.item())

trained = nn.DataParallel(net())
train(trained, 200)
state = trained.state_dict()
"""
SICK = TUNE + "model = net()\nmodel.load_state_dict(state, strict=False)\ntrain(model, 40)\n"
SOUND = SICK.replace("state = trained.state_dict()", "state = trained.module.state_dict()")


def test_a_real_run_names_it(tmp_path: Path) -> None:
    told = verdict(tmp_path, SICK)
    first = told["causes"][0]
    assert (told["verdict"], first["cause"]) == ("sick", "checkpoint-not-loaded")
    assert (first["status"], first["proof"], first["since_step"]) == ("confirmed", "law", 200)
    line = SICK[: SICK.index("model.load_state_dict")].count("\n") + 1
    assert first["line"] == f"tune.py:{line}"


@pytest.mark.slow
def test_its_healthy_twin_is_cleared(tmp_path: Path) -> None:
    told = verdict(tmp_path, SOUND)
    assert "checkpoint-not-loaded" in [one["cause"] for one in told["ruled_out"]]
    assert told["verdict"] == "healthy"
