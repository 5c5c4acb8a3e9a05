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


def test_the_shorter_steps_are_the_usual_ones() -> None:
    """The first steps measure everything once: the device is busy with us then, and steps are longer."""
    series = {
        "sync.reads": [1.0] * 200,
        "time.step": [0.16] * 8 + [0.03] * 192,
        "sync.idle": [0.02] * 8,
    }
    found = sync_every_step(make_record(series, facts={"env": {"device": "NVIDIA H200"}}))
    assert isinstance(found, Finding)
    assert found.evidence[0].value == pytest.approx(0.02 / 0.03)


def test_a_gap_now_and_then_is_not_every_step() -> None:
    series = {
        "sync.reads": [1.0] * 40,
        "time.step": [0.03] * 40,
        "sync.idle": [0.001] * 30 + [0.02] * 10,
    }
    said = sync_every_step(make_record(series, facts={"env": {"device": "NVIDIA H200"}}))
    assert isinstance(said, Clear)
    assert "3 %" in said.by
