from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from traindoctor.checks.base import Clear, Finding, NotJudged, Outcome
from traindoctor.checks.model.wrong_train_eval_mode import wrong_train_eval_mode
from traindoctor.record import Series, make_record
from warm_python import warm_run

AVERAGED = """
import copy
import sys
import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(
    nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2),
    nn.Conv2d(8, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.Flatten(), nn.Linear(256, 4),
)
average = copy.deepcopy(model).eval()
optimizer = torch.optim.Adam(model.parameters(), 1e-2)

def batch(rows=32):
    y = torch.randint(4, (rows,))
    x = torch.randn(rows, 1, 8, 8)
    x[torch.arange(rows), 0, 2 * y, :] += 2
    return x, y

for step in range(160):
    x, y = batch()
    loss = F.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    with torch.no_grad():
        for slow, fast in zip(average.parameters(), model.parameters()):
            slow.lerp_(fast, 0.05)
        if sys.argv[1] == "buffers":
            for slow, fast in zip(average.buffers(), model.buffers()):
                slow.copy_(fast)
        if step % 50 == 49:
            x, y = batch(64)
            print(step, F.cross_entropy(average(x), y).item())
"""


def test_fires_when_training_in_evaluation_mode() -> None:
    found = wrong_train_eval_mode(make_record({"mode.training": [0.0] * 10}))
    assert isinstance(found, Finding)
    assert found.since_step == 0


def test_fires_when_train_is_forgotten_after_an_evaluation() -> None:
    found = wrong_train_eval_mode(make_record({"mode.training": [1.0] * 10 + [0.0] * 20}))
    assert isinstance(found, Finding)
    assert found.since_step == 10


@pytest.mark.parametrize(("whole", "asked"), [(1.0, False), (0.0, False), (1.0, True)])
def test_parts_that_are_frozen_in_the_middle(whole: float, asked: bool) -> None:
    """On purpose, where the model itself goes on in training mode and nobody has evaluated it: batch statistics, mostly."""
    series = {"mode.training": [1.0] * 10 + [0.0] * 20, "mode.whole": [1.0] * 10 + [whole] * 20}
    if asked:
        series["mode.eval_training"] = [0.0] * 10
    found = wrong_train_eval_mode(make_record(series))
    assert isinstance(found, Clear if whole and not asked else Finding)


def test_fires_when_the_held_out_loss_is_taken_in_training_mode() -> None:
    series = {
        "mode.training": [1.0] * 10,
        "mode.eval_training": [1.0] * 10,
        "loss.eval": [2.0] * 10,
    }
    found = wrong_train_eval_mode(make_record(series))
    assert isinstance(found, Finding)
    assert found.status == "likely"


def test_fires_on_rare_evaluations_that_take_no_loss() -> None:
    series = {"mode.training": [1.0] * 40, "mode.eval_training": [1.0] * 4}
    assert isinstance(wrong_train_eval_mode(make_record(series)), Finding)


def test_silent_on_sound_runs_frozen_parts_and_sampling() -> None:
    sound = {"mode.training": [1.0] * 10, "mode.eval_training": [0.0] * 10, "loss.eval": [2.0] * 10}
    assert isinstance(wrong_train_eval_mode(make_record(sound)), Clear)
    frozen = {"mode.training": [0.7] * 10}
    assert isinstance(wrong_train_eval_mode(make_record(frozen)), Clear)
    sampling = {"mode.training": [1.0] * 10, "mode.eval_training": [1.0] * 10}
    assert isinstance(wrong_train_eval_mode(make_record(sampling)), Clear)


def test_silent_on_preference_training_without_dropout() -> None:
    """From the first step on, beside a frozen model in evaluation mode; BatchNorm would be another matter."""
    both = {"mode.training": [0.0] * 30, "mode.beside_training": [0.0] * 30}
    dropout, statistics = ({"mode.statistics": one} for one in (False, True))
    assert isinstance(wrong_train_eval_mode(make_record(both, facts=dropout)), Clear)
    assert isinstance(wrong_train_eval_mode(make_record(both, facts=statistics)), Finding)
    forgotten = both | {"mode.training": [1.0] * 10 + [0.0] * 20}
    assert isinstance(wrong_train_eval_mode(make_record(forgotten, facts=dropout)), Finding)
    # A stage of its own, with an optimizer of its own, begins like a run.
    staged = make_record(forgotten, facts=dropout)
    staged._series["optim.objects"] = Series(
        "optim.objects", np.array([0, 10]), np.array([1.0, 2.0])
    )
    assert isinstance(wrong_train_eval_mode(staged), Clear)


def test_a_stage_that_begins_in_evaluation_mode() -> None:
    """Left over from an evaluation it is forgotten; without one the script says what it wants."""
    modes = {"mode.training": [1.0] * 10 + [0.0] * 20}
    optimizers = Series("optim.objects", np.array([0, 10]), np.array([1.0, 2.0]))
    meant = make_record(modes)
    meant._series["optim.objects"] = optimizers
    assert isinstance(wrong_train_eval_mode(meant), Clear)
    for kind in ("mode.eval_training", "mode.beside_training"):
        forgotten = make_record(modes, facts={"mode.statistics": False})
        forgotten._series["optim.objects"] = optimizers
        forgotten._series[kind] = Series(kind, np.array([10]), np.array([0.0]))
        assert isinstance(wrong_train_eval_mode(forgotten), Finding)


def test_a_stage_in_evaluation_mode_that_is_judged_by_itself() -> None:
    """As a stretch of its own it begins at its first step, and there is nothing before it to have been left."""
    stretch = make_record(facts={"mode.statistics": False})
    steps = np.arange(110, 140)
    stretch._series["mode.training"] = Series("mode.training", steps, np.zeros(30))
    stretch._series["optim.objects"] = Series("optim.objects", np.array([110]), np.array([2.0]))
    assert isinstance(wrong_train_eval_mode(stretch), Clear)
    stretch._series["mode.eval_training"] = Series(
        "mode.eval_training", np.array([110]), np.array([0.0])
    )
    assert isinstance(wrong_train_eval_mode(stretch), Finding)


def test_dropout_functions_that_do_not_know_the_mode() -> None:
    usual = {"mode.training": [1.0] * 20, "mode.eval_training": [0.0] * 3}
    found = wrong_train_eval_mode(make_record(usual | {"mode.eval_dropout": [2.0, 2.0, 2.0]}))
    assert isinstance(found, Finding)
    assert "self.training" in found.remedy
    assert isinstance(
        wrong_train_eval_mode(make_record(usual | {"mode.eval_dropout": [0.0]})), Clear
    )


def taught(*, steps: int = 30, **values: object) -> Outcome:
    series = {"mode.beside_training": [1.0] * steps, "loss.root": [1.0] * 30}
    known = {"dropouts": 4, "unchanged": True, "answers": 1.0, "weights": 9, "line": None}
    exams = {"frozen_targets": known | {"module": None} | values} if values else {}
    return wrong_train_eval_mode(make_record(series, exams=exams))


def test_a_frozen_teacher_whose_dropout_is_at_work_is_named() -> None:
    found = taught(dropouts=4)
    assert isinstance(found, Finding)
    assert found.grade == "exact"
    assert "teacher.eval()" in found.remedy


def test_moving_averages_ensembles_and_rare_passes_are_no_such_teachers() -> None:
    assert not isinstance(taught(unchanged=False), Finding)
    assert not isinstance(taught(answers=8.0), Finding)
    assert not isinstance(taught(dropouts=0), Finding)
    assert not isinstance(taught(steps=3, dropouts=4), Finding)


def test_a_model_beside_in_training_mode_is_asked_about() -> None:
    outcome = taught()
    assert isinstance(outcome, NotJudged)
    assert outcome.wants == "frozen_targets"


def averaged(**values: Any) -> Outcome:
    """A moving average that was looked at after 100 steps, beside a run whose modules are in the right mode."""
    known = {"model": "ConvNet", "step": 100, "since": 50, "trained_steps": 100, "layers": 3}
    known |= {"initial": 0, "kept": 0, "kept_since": 100, "where": "features.1"}
    facts = {"mode.running_statistics": [known | values]}
    return wrong_train_eval_mode(make_record({"mode.training": [1.0] * 100}, facts=facts))


def test_an_average_with_statistics_of_no_batch_is_named() -> None:
    found = averaged(initial=3)
    assert isinstance(found, Finding)
    assert (found.grade, found.status, found.since_step) == ("exact", "confirmed", 50)
    assert found.where == "features.1"
    assert "ConvNet" in found.summary
    assert "update_bn" in found.remedy


def test_an_average_with_the_statistics_of_its_copy_is_named() -> None:
    found = averaged(kept=3, kept_since=50)
    assert isinstance(found, Finding)
    assert found.status == "confirmed"
    assert "step 50" in found.summary


def test_statistics_that_follow_or_are_young_are_not_named() -> None:
    assert isinstance(averaged(), Clear)
    assert isinstance(averaged(initial=3, trained_steps=5), Clear)
    assert isinstance(averaged(kept=3, kept_since=90), Clear)


def verdict(tmp_path: Path, what: str) -> dict[str, Any]:
    script, out = tmp_path / "train.py", tmp_path / "verdict.json"
    script.write_text(AVERAGED)
    command = ["-m", "traindoctor", "run", "--out", str(tmp_path / "run"), "--after", "0"]
    done = warm_run([*command, "--json", str(out), "--quiet", str(script), what], folder=tmp_path)
    assert done.returncode == 0, done.stderr
    said: dict[str, Any] = json.loads(out.read_text())
    return said


def test_a_run_that_evaluates_an_average_without_its_buffers(tmp_path: Path) -> None:
    said = verdict(tmp_path, "parameters")
    [cause] = said["causes"]
    assert (said["verdict"], cause["cause"]) == ("sick", "wrong-train-eval-mode")
    assert (cause["status"], cause["proof"], cause["where"]) == ("confirmed", "law", "1")
    assert "running statistics of no batch" in cause["summary"]


@pytest.mark.slow
def test_the_same_run_with_the_buffers(tmp_path: Path) -> None:
    assert verdict(tmp_path, "buffers")["causes"] == []
