from __future__ import annotations

import numpy as np

from traindoctor.checks.base import Clear, Finding, NotJudged, Outcome
from traindoctor.checks.model.wrong_train_eval_mode import wrong_train_eval_mode
from traindoctor.record import Series, make_record


def test_fires_when_training_in_evaluation_mode() -> None:
    found = wrong_train_eval_mode(make_record({"mode.training": [0.0] * 10}))
    assert isinstance(found, Finding)
    assert found.since_step == 0


def test_fires_when_train_is_forgotten_after_an_evaluation() -> None:
    found = wrong_train_eval_mode(make_record({"mode.training": [1.0] * 10 + [0.0] * 20}))
    assert isinstance(found, Finding)
    assert found.since_step == 10


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
