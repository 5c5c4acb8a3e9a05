"""A run that has gone on is its own control: a lower rate is held against its losses on its latest batches."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from planted import short_run

from traindoctor.checks.experiments import Experiment
from traindoctor.exams.counterfactual import first_plan
from traindoctor.experiment.control import (
    FEWEST_ROUNDS,
    against_itself,
    latest_batches,
    rounds_against_itself,
)
from traindoctor.record import ExamResult


@pytest.mark.parametrize("make", [torch.optim.SGD, torch.optim.Adam])
@pytest.mark.parametrize(
    ("course", "wins"), [("as it was", False), ("stuck", True), ("swinging", False)]
)
def test_a_tenth_of_the_rate_wins_where_the_run_is_steadily_above_it(
    make, course: str, wins: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    patient = short_run(make, rate=3.0)
    plan = first_plan(patient)
    for number, log in enumerate(latest_batches(patient, plan)):
        away = 0.01 * (number % 3) if course == "stuck" else 2.0 * (number // 4)
        if course != "as it was":
            monkeypatch.setattr(log, "losses", [torch.tensor(3.0 + away)])
    values = against_itself(replace(patient, seconds=math.inf), plan, FEWEST_ROUNDS)
    trial = Experiment.of(ExamResult("experiment_rate_long", 70, "done", values))
    assert trial is not None
    assert trial.faithful
    assert trial.steps == FEWEST_ROUNDS * len(plan.train)
    assert trial.wins("lr/10") is wins


def test_it_is_judged_on_batches_that_it_has_not_seen_and_after_no_more_steps_than_the_run() -> (
    None
):
    patient = short_run(torch.optim.SGD, rate=30.0)
    plan = first_plan(patient)
    held = latest_batches(patient, plan)
    assert min(one.step for one in held) > max(one.step for one in plan.train)
    # 70 steps are less than two rounds of 40; 100 are not; a second is not enough for either.
    assert rounds_against_itself(replace(patient, current_step=70), plan) == 0
    assert rounds_against_itself(replace(patient, current_step=100), plan) == FEWEST_ROUNDS
    assert rounds_against_itself(replace(patient, current_step=100, seconds=0.0), plan) == 0
