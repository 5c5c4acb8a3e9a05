from __future__ import annotations

from traindoctor.checks.base import Clear, Finding
from traindoctor.checks.model.wrong_train_eval_mode import wrong_train_eval_mode
from traindoctor.record import make_record


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


def test_dropout_functions_that_do_not_know_the_mode() -> None:
    usual = {"mode.training": [1.0] * 20, "mode.eval_training": [0.0] * 3}
    found = wrong_train_eval_mode(make_record(usual | {"mode.eval_dropout": [2.0, 2.0, 2.0]}))
    assert isinstance(found, Finding)
    assert "self.training" in found.remedy
    assert isinstance(
        wrong_train_eval_mode(make_record(usual | {"mode.eval_dropout": [0.0]})), Clear
    )
