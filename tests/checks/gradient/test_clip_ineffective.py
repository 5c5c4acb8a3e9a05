from __future__ import annotations

from traindoctor.checks.base import Clear, Finding, NotApplicable, NotJudged
from traindoctor.checks.gradient.clip_ineffective import clip_ineffective
from traindoctor.record import Record, make_record


def record(in_time: float, coverage: float = 1.0, scaled: float = 0.0, scale=None) -> Record:
    series = {
        "clip.calls": [1.0] * 20,
        "clip.in_time": [in_time] * 20,
        "clip.coverage": [coverage] * 20,
        "clip.scaled": [scaled] * 20,
    }
    if scale is not None:
        series["scaler.scale"] = [scale] * 20
    return make_record(series)


def test_fires_before_backward_or_after_the_step() -> None:
    found = clip_ineffective(record(0.0, coverage=0.0))
    assert isinstance(found, Finding)
    assert "before backward or after the step" in found.summary


def test_fires_on_an_exhausted_generator() -> None:
    found = clip_ineffective(record(1.0, coverage=0.0))
    assert isinstance(found, Finding)
    assert "generator" in found.summary


def test_what_is_in_no_optimizer_is_that_optimizers_fault() -> None:
    nothing = record(1.0, coverage=0.0)
    nothing.facts["optimizer.coverage"] = {"missing": [{"name": "lora.a"}], "missing_share": 0.95}
    assert isinstance(clip_ineffective(nothing), Clear)
    nothing.facts["optimizer.coverage"] = {"missing": [], "missing_share": 0.0}
    assert isinstance(clip_ineffective(nothing), Finding)


def test_fires_before_unscaling() -> None:
    found = clip_ineffective(record(1.0, scaled=1.0, scale=65536.0))
    assert isinstance(found, Finding)
    assert "65536" in found.summary


def test_silent_in_the_right_place_with_and_without_a_scaler() -> None:
    assert isinstance(clip_ineffective(record(1.0)), Clear)
    # Without a scaler nothing is ever unscaled, and nothing need be.
    assert isinstance(clip_ineffective(record(1.0, scaled=1.0)), Clear)
    assert isinstance(clip_ineffective(record(1.0, scaled=0.0, scale=65536.0)), Clear)


def test_silent_on_clipping_of_some_parts() -> None:
    assert isinstance(clip_ineffective(record(6.0, coverage=0.5)), Clear)


def test_a_script_that_does_not_clip_cannot_have_it() -> None:
    assert isinstance(clip_ineffective(make_record({"clip.calls": [0.0] * 20})), NotApplicable)
    assert isinstance(clip_ineffective(make_record()), NotJudged)


def test_where_no_step_is_ever_made_clipping_is_not_the_fault() -> None:
    late = record(0.0)
    late.facts["optimizer.stepping"] = {"optimizers": 1, "steps": 0, "weights_changed": False}
    assert isinstance(clip_ineffective(late), NotApplicable)
    late.facts["optimizer.stepping"] = {"optimizers": 1, "steps": 0, "weights_changed": True}
    assert isinstance(clip_ineffective(late), Finding), "the script steps by hand"
