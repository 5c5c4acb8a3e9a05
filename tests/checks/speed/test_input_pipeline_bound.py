from __future__ import annotations

from traindoctor.checks.base import Clear, Finding, NotJudged
from traindoctor.checks.speed.input_pipeline_bound import input_pipeline_bound
from traindoctor.record import Record, make_record


def record_of(data: float, loader: float, step: float = 0.1, steps: int = 30) -> Record:
    return make_record(
        {
            "time.step": [step] * steps,
            "time.data": [data * step] * steps,
            "time.loader": [loader * step] * steps,
        }
    )


def test_named_when_the_loader_is_slow() -> None:
    finding = input_pipeline_bound(record_of(0.7, 0.7))
    assert isinstance(finding, Finding)
    assert finding.status == "likely"
    assert "inside the DataLoader" in finding.summary


def test_the_scripts_own_code_is_only_possible() -> None:
    finding = input_pipeline_bound(record_of(0.7, 0.0))
    assert isinstance(finding, Finding)
    assert finding.status == "possible"
    assert "own code" in finding.summary


def test_silent_when_the_step_computes() -> None:
    assert isinstance(input_pipeline_bound(record_of(0.12, 0.03)), Clear)


def test_silent_on_steps_too_short_to_matter() -> None:
    assert isinstance(input_pipeline_bound(record_of(0.7, 0.7, step=0.004)), Clear)


def test_silent_when_waiting_is_rare() -> None:
    steps = [0.1] * 30
    data = [0.002] * 30
    for epoch in range(0, 30, 10):
        steps[epoch], data[epoch] = 5.0, 4.9
    record = make_record({"time.step": steps, "time.data": data, "time.loader": data})
    assert isinstance(input_pipeline_bound(record), Clear)


def test_not_judged_on_a_few_steps() -> None:
    assert isinstance(input_pipeline_bound(record_of(0.7, 0.7, steps=5)), NotJudged)
