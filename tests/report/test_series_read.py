"""The series that a finding rests on are those that its check reads."""

from __future__ import annotations

from traindoctor.record import make_record
from traindoctor.report.series_read import series_read

CLEAN = {"backward.into_grad": [1.0] * 20, "loss.root": [1.0] * 20, "time.step": [0.1] * 20}


def test_the_series_of_a_finding() -> None:
    record = make_record({**CLEAN, "grad.leftover_norm": [0.0, *[2.0] * 19]})
    read = series_read("missing-zero-grad", record)
    assert "grad.leftover_norm" in read
    assert "time.step" not in read


def test_what_is_not_recorded_was_not_read() -> None:
    assert "grad.leftover_norm" not in series_read("missing-zero-grad", make_record(CLEAN))


def test_a_cause_of_another_version_has_none() -> None:
    assert series_read("of-another-version", make_record(CLEAN)) == []


def test_the_record_that_is_followed_is_whole() -> None:
    """A check that asks for facts, exams, layers or ranks finds what the record has."""
    from traindoctor.checks import BY_SLUG

    record = make_record(
        {**CLEAN, "grad.norm": [1.0] * 20, "optim.lr": [1e-3] * 20},
        facts={"run.steps": 20, "env": {"device": "cpu"}},
        layers={"grad.rms": {"a": [1.0] * 20}},
    )
    for cause in BY_SLUG:
        assert set(series_read(cause, record)) <= {*record.names, *record.layer_names}
