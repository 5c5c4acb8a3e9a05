"""Symptoms: seen on the sick curve, not on the healthy one."""

from __future__ import annotations

import math

import numpy as np
import pytest

from traindoctor.checks import CHECKS
from traindoctor.diagnosis.symptoms import Symptom, symptoms
from traindoctor.record import Record, Series, make_record

RNG = np.random.default_rng(0)
FALLING = (2 + 2 * np.exp(-np.arange(200) / 40) + RNG.normal(0, 0.05, 200)).tolist()


def names(record: Record) -> list[str]:
    return [symptom.name for symptom in symptoms(record)]


def test_a_falling_loss_has_none() -> None:
    assert names(make_record({"loss.root": FALLING})) == []


def test_nan_is_grave_and_dated() -> None:
    (symptom,) = symptoms(make_record({"loss.root": [3.0, 2.0, math.nan, math.nan]}))
    assert (symptom.name, symptom.since_step, symptom.grave) == ("loss-not-finite", 2, True)


def test_one_skipped_batch_is_nothing() -> None:
    losses = [*FALLING[:100], math.inf, *FALLING[100:]]
    assert names(make_record({"loss.root": losses})) == []


def test_a_rise_over_the_start_is_grave() -> None:
    (symptom,) = symptoms(make_record({"loss.root": FALLING[::-1]}))
    assert (symptom.name, symptom.grave) == ("loss-rising", True)


@pytest.mark.parametrize(("back", "grave"), [(2.6, False), (3.6, True)])
def test_a_loss_that_has_come_back_half_way_is_grave(back: float, grave: bool) -> None:
    """It fell from 4 to 2."""
    climbing = np.linspace(2.0, back, 100) + RNG.normal(0, 0.02, 100)
    (symptom,) = symptoms(make_record({"loss.root": [*FALLING, *climbing, *[back] * 40]}))
    assert (symptom.name, symptom.grave) == ("loss-rebounds", grave)


def test_steps_of_which_only_the_optimised_loss_was_measured_belong_to_the_course() -> None:
    """The loss of each token is counted more rarely, and it rose behind the last of those steps."""
    losses = [*np.linspace(4.0, 2.0, 100), *np.linspace(2.0, 5.0, 100)]
    record = make_record({"loss.root": losses, "loss.token": losses[:110]})
    assert names(record) == ["loss-rising"]


def staged(second: list[float]) -> set[str]:
    """After fifty steps another optimizer begins, on other data."""
    record = make_record({"loss.root": [*np.linspace(3.0, 1.0, 50), *second]})
    begun = Series("optim.objects", np.array([0, 50]), np.array([1.0, 2.0]))
    record._series["optim.objects"] = begun
    return {symptom.name for symptom in symptoms(record)}


def test_a_stage_begins_a_course_of_its_own() -> None:
    assert staged(list(np.linspace(8.0, 5.0, 50))) == set()
    assert staged(list(np.linspace(1.0, 9.0, 50))) == {"loss-rising"}
    assert staged([1.0] * 50) == {"loss-flat"}
    # An earlier stage has learned it to the end.
    assert staged([0.02] * 50) == set()


def test_a_loss_that_goes_below_0_has_no_level_to_fall_from() -> None:
    assert names(make_record({"loss.root": RNG.normal(0.0, 0.02, 100).tolist()})) == []


def test_a_flat_loss_is_light() -> None:
    (symptom,) = symptoms(make_record({"loss.root": RNG.normal(9.21, 0.02, 100).tolist()}))
    assert (symptom.name, symptom.grave) == ("loss-flat", False)


@pytest.mark.parametrize(("level", "grave"), [(math.log(2), True), (0.6, False)])
def test_a_flat_loss_at_the_level_of_the_toss_of_a_coin_is_grave(level: float, grave: bool) -> None:
    (symptom,) = symptoms(make_record({"loss.root": RNG.normal(level, 0.002, 100).tolist()}))
    assert (symptom.name, symptom.grave) == ("loss-flat", grave)


def test_a_flat_loss_at_the_level_of_a_blind_guess_is_grave() -> None:
    def flat(level: float) -> Symptom:
        losses = {"loss.token": RNG.normal(level, 0.02, 100).tolist()}
        (symptom,) = symptoms(make_record(losses, facts={"loss.site": {"classes": 100}}))
        return symptom

    assert flat(4.62).grave
    assert not flat(1.8).grave  # fine-tuning at a tiny rate


@pytest.mark.parametrize(("length", "expected"), [(80, True), (30, False)])
def test_the_unigram_rung_needs_forty_steps(length: int, expected: bool) -> None:
    off = np.linspace(5, 3.2, 200 - length).tolist()
    loss = [*off, *(3.0 + RNG.normal(0, 0.02, length))]
    record = make_record({"loss.token": loss, "ladder.unigram": [3.0] * 200})
    assert ("loss-at-unigram" in names(record)) is expected


def test_a_run_that_is_leaving_the_unigram_rung_is_not_stuck_on_it() -> None:
    loss = [3.01] * 60 + [2.97, 2.93, 2.88, 2.82]
    record = make_record({"loss.token": loss, "ladder.unigram": [3.0] * len(loss)})
    assert "loss-at-unigram" not in names(record)


def test_better_than_a_five_gram_count_is_too_good() -> None:
    record = make_record({"loss.token": FALLING, "ladder.fivegram": [x + 0.3 for x in FALLING]})
    assert names(record) == ["loss-too-good"]


def test_always_clipped() -> None:
    record = make_record({"grad.norm": [5.0] * 50, "clip.limit": [1.0] * 50})
    assert names(record) == ["always-clipped"]
    unclipped = make_record({"grad.norm": [5.0] * 50, "clip.limit": [math.nan] * 50})
    assert names(unclipped) == []


@pytest.mark.parametrize(("error", "stuck"), [(1.0, True), (0.7, False)])
def test_a_regression_that_does_no_better_than_the_mean(error: float, stuck: bool) -> None:
    record = make_record({"loss.squared": [error] * 60, "target.variance": [1.0] * 60})
    assert ("loss-at-variance" in {s.name for s in symptoms(record) if s.grave}) == stuck


def test_a_squared_term_beside_a_loss_over_classes_is_no_regression() -> None:
    term = {"loss.squared": [1.0] * 60, "target.variance": [1.0] * 60}
    assert names(make_record(term | {"loss.token": FALLING[:60]})) == []


def test_a_loss_below_zero_that_rises_is_no_measure_of_success() -> None:
    noise = np.random.default_rng(0).normal(0, 0.01, 100)
    rising = make_record({"loss.root": (np.linspace(-0.5, 0.5, 100) + noise).tolist()})
    assert not [one for one in symptoms(rising) if one.name == "loss-rising"]


def test_a_part_of_the_loss_may_rise_while_the_loss_falls() -> None:
    noise = np.random.default_rng(0).normal(0, 0.01, 100)
    part, whole = (
        (np.linspace(0.2, 0.6, 100) + noise).tolist(),
        (1.0 / (np.arange(100) + 1)).tolist(),
    )
    assert [s.name for s in symptoms(make_record({"loss.token": part}))] == ["loss-rising"]
    assert not symptoms(make_record({"loss.token": part, "loss.root": whole}))


@pytest.mark.parametrize("name", sorted({sign for check in CHECKS for sign in check.signs}))
def test_what_checks_claim_as_signs_are_symptoms(name: str) -> None:
    """Under another name a sign would speak for nothing."""
    clipped = {"grad.norm": [5.0] * 40, "clip.limit": [1.0] * 40}
    too_good = {"loss.token": [1.0] * 40, "ladder.fivegram": [2.0] * 40}
    assert name in names(make_record(clipped | too_good))


@pytest.mark.parametrize(("falls", "said"), [(True, []), (False, ["loss-at-unigram"])])
def test_later_losses_tell_whether_a_run_has_left_the_level(falls: bool, said: list[str]) -> None:
    """Small batches: levels are counted in the first steps alone, the loss of backward is known at all of them."""
    noise = np.random.default_rng(1).normal(0, 0.08, 240)
    losses = 0.69 + noise - np.concatenate([np.zeros(60), np.linspace(0, 0.4, 180) * falls])
    series = {"loss.token": losses[:60], "ladder.unigram": [0.69] * 60, "loss.root": losses}
    assert [n for n in names(make_record(series)) if n == "loss-at-unigram"] == said


@pytest.mark.parametrize(("share", "rising"), [(0.4, []), (1e-8, ["loss-rising"])])
@pytest.mark.parametrize("losses", ["rising", "flat"])
def test_a_loss_that_moves_with_the_weights_is_no_measure(
    share: float, rising: list[str], losses: str
) -> None:
    """A policy against itself, a codebook: what is held fixed in the loss is another at the next step."""
    values = [0.001 + 0.0005 * k * (losses == "rising") for k in range(60)]
    exams = {"tape_gradient": {"step": 20, "difference": 0.0, "noise": 1e-7, "held_fixed": share}}
    found = [s.name for s in symptoms(make_record({"loss.root": values}, exams=exams))]
    expected = rising if losses == "rising" else ["loss-flat"] * len(rising)
    assert found == expected


@pytest.mark.parametrize("odd", [{}, {"held_fixed": "much"}, {"step": "two", "held_fixed": 0.4}])
def test_a_record_of_another_version_is_read(odd: dict[str, object]) -> None:
    rising = [0.001 + 0.0005 * k for k in range(60)]
    record = make_record({"loss.root": rising}, exams={"tape_gradient": odd})
    assert names(record) == ["loss-rising"]
