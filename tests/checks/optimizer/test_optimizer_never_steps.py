from __future__ import annotations

import math

import pytest

from traindoctor.checks import CHECKS
from traindoctor.checks.base import Check, Clear, Finding, NotApplicable, NotJudged
from traindoctor.checks.optimizer.optimizer_never_steps import optimizer_never_steps
from traindoctor.record import make_record


def facts(backwards: int, changed: bool | None, steps: int = 0) -> dict:
    stepping = {"optimizers": 1, "steps": steps, "backwards": backwards, "weights_changed": changed}
    return {"optimizer.stepping": stepping, "run.backwards": backwards, "run.steps": steps}


def test_fires_on_many_backward_passes_and_weights_that_stay() -> None:
    found = optimizer_never_steps(make_record(facts=facts(250, False)))
    assert isinstance(found, Finding)
    assert "250" in found.summary


def test_steps_left_out_because_no_gradient_is_finite() -> None:
    """`if isfinite(norm): step()` is right; what makes the NaN is the cause."""
    nan, found = {"grad.norm": [math.nan] * 60}, {"op": "sqrt", "line": "train.py:9"}
    record = make_record(nan, facts=facts(60, False), exams={"first_nonfinite": found})
    outcome = optimizer_never_steps(record)
    assert isinstance(outcome, Clear)
    assert "which sqrt brings about" in outcome.by
    unknown = make_record(nan, facts=facts(60, False), exams={"first_nonfinite": {"op": None}})
    assert isinstance(optimizer_never_steps(unknown), Finding)
    some = {"grad.norm": [1.0] + [math.nan] * 59}
    now_and_then = make_record(some, facts=facts(60, False), exams={"first_nonfinite": found})
    assert isinstance(optimizer_never_steps(now_and_then), Finding)


def test_silent_on_long_accumulation_and_hand_written_updates() -> None:
    assert isinstance(optimizer_never_steps(make_record(facts=facts(64, None, steps=2))), Clear)
    by_hand = optimizer_never_steps(make_record(facts=facts(250, True)))
    assert by_hand == Clear("optimizer-never-steps", "the script updates its weights itself")
    assert isinstance(optimizer_never_steps(make_record(facts=facts(250, None))), NotJudged)
    assert isinstance(optimizer_never_steps(make_record(facts=facts(30, False))), NotJudged)


@pytest.mark.parametrize("check", [c for c in CHECKS if c.of_optimizer], ids=lambda c: c.slug)
def test_what_is_about_torchs_optimizers_does_not_apply_without_one(check: Check) -> None:
    """A log that does not show the rate says nothing of it; a run that was watched has none."""
    losses = {"loss.root": [1.0] * 40}
    assert isinstance(check(make_record(losses, facts={"env": {}})), NotApplicable)
    assert isinstance(check(make_record(losses)), NotJudged)


def test_fires_when_the_scaler_skips_for_ever_but_not_at_its_start() -> None:
    always = make_record({"scaler.skipped": [1.0] * 30})
    found = optimizer_never_steps(always)
    assert isinstance(found, Finding)
    assert "scaler" in found.summary
    at_first = make_record({"scaler.skipped": [1.0] * 4 + [0.0] * 60}, facts={"run.steps": 60})
    assert isinstance(optimizer_never_steps(at_first), Clear)


def test_fires_when_the_gradient_is_cleared_between_backward_and_step() -> None:
    gone = {"grad.norm": [2.9] * 40, "grad.norm_at_step": [0.0] * 4}
    found = optimizer_never_steps(make_record(gone, facts={"run.steps": 40}))
    assert isinstance(found, Finding)
    assert found.evidence[0].expected == 2.9
    there = gone | {"grad.norm_at_step": [0.0, 1.0, 1.0, 1.0]}
    assert isinstance(optimizer_never_steps(make_record(there, facts={"run.steps": 40})), Clear)
    no_gradient = gone | {"grad.norm": [0.0] * 40}  # a matter of the loss, not of the step
    outcome = optimizer_never_steps(make_record(no_gradient, facts={"run.steps": 40}))
    assert isinstance(outcome, Clear)
