from __future__ import annotations

import pytest

from traindoctor.checks.base import Clear, Finding, NotApplicable, NotJudged
from traindoctor.checks.speed.sync_every_step import sync_every_step
from traindoctor.record import Record, make_record


def record_of(reads: float, idle: float | None, device: str = "NVIDIA H200") -> Record:
    series = {"sync.reads": [reads] * 20, "time.step": [0.05] * 20}
    if idle is not None:
        series["sync.idle"] = [idle] * 5
    return make_record(series, facts={"env": {"device": device}})


def test_named_when_the_device_stands_idle() -> None:
    assert isinstance(sync_every_step(record_of(2, 0.02)), Finding)


def test_silent_when_it_does_not() -> None:
    assert isinstance(sync_every_step(record_of(2, 0.001)), Clear)


def test_silent_when_nothing_is_read() -> None:
    assert isinstance(sync_every_step(record_of(0, None)), Clear)


def test_on_a_cpu_the_cause_does_not_exist() -> None:
    assert isinstance(sync_every_step(record_of(5, 0.04, device="cpu")), NotApplicable)


def test_reads_alone_name_nothing() -> None:
    assert isinstance(sync_every_step(record_of(5, None)), NotJudged)


def measured_first(steps: int, *, idle: float, first: int = 24) -> Record:
    """A run whose first steps hold our own measurements: 40 ms of them, for which the device stands idle too."""
    ours = [0.04 if n < first else 0.001 for n in range(steps)]
    return make_record(
        {
            "sync.reads": [1.0] * steps,
            "time.step": [0.05 + own for own in ours],
            "sync.idle": [idle + own for own in ours],
            "self.seconds": ours,
        },
        facts={"env": {"device": "NVIDIA H200"}},
    )


def test_our_own_first_measurements_do_not_count() -> None:
    # Over all steps the median would be that of the disturbed ones: 0.041 of 0.09 seconds.
    outcome = sync_every_step(measured_first(40, idle=0.001))
    assert isinstance(outcome, Clear)
    assert "4 %" in outcome.by  # (0.001 + 0.001) / 0.051


def test_what_the_script_does_is_named_beside_them() -> None:
    found = sync_every_step(measured_first(240, idle=0.02))
    assert isinstance(found, Finding)
    assert found.evidence[0].value == pytest.approx(0.021 / 0.051)
    # In the first steps alone the same fault cannot be told from us.
    open_ = sync_every_step(measured_first(26, idle=0.02))
    assert isinstance(open_, NotJudged)
    assert "our own" in open_.reason


def test_the_step_after_a_disturbed_one_is_left_out_too() -> None:
    record = measured_first(240, idle=0.001, first=0)
    loud = [0.04 if n % 2 == 0 else 0.001 for n in range(200)] + [0.001] * 40
    late = [0.03 if n < 201 else 0.002 for n in range(240)]
    series = {name: list(record[name].values) for name in ("sync.reads", "time.step")}
    made = make_record(
        {**series, "self.seconds": loud, "sync.idle": late},
        facts={"env": {"device": "NVIDIA H200"}},
    )
    assert isinstance(sync_every_step(made), Clear)


def always_measured(steps: int, *, idle: float, own: float) -> Record:
    """A short run, every step of which holds our own work, all of it while the device was idle."""
    return make_record(
        {
            "sync.reads": [1.0] * steps,
            "time.step": [0.03 + own] * steps,
            "sync.idle": [idle + own] * steps,
            "self.seconds": [own] * steps,
        },
        facts={"env": {"device": "NVIDIA H200"}},
    )


def test_idleness_far_beyond_our_own_time_is_named_in_any_step() -> None:
    found = sync_every_step(always_measured(20, idle=0.02, own=0.005))
    assert isinstance(found, Finding)
    # the last step's successor is not known: its own time is taken off once only
    assert found.evidence[0].value == pytest.approx((0.02 - 0.005) / 0.035)


def test_idleness_that_may_be_ours_is_left_open() -> None:
    assert isinstance(sync_every_step(always_measured(20, idle=0.001, own=0.02)), NotJudged)


@pytest.mark.parametrize(("idle", "outcome"), [(0.02, Finding), (0.003, NotJudged)])
def test_where_we_listen_seldom_and_then_at_length_the_quietest_steps_tell(
    idle: float, outcome: type
) -> None:
    """Thirty loud first steps, then a fifth of every step that is heard is ours."""
    own = [0.1] * 30 + [0.006] * 14
    series = {
        "time.step": [0.03 + o for o in own],
        "sync.idle": [idle + o for o in own],
        "self.seconds": own,
        "sync.reads": [1.0] * len(own),
    }
    found = sync_every_step(make_record(series, facts={"env": {"device": "NVIDIA H200"}}))
    assert isinstance(found, outcome)
