"""The doctor's loop on a real watched run, with small exams of the test's own."""

from __future__ import annotations

import functools
import io
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

import traindoctor.diagnosis.engine as engine
import traindoctor.doctor as doctor_module
from traindoctor.capture.pace import (
    FIRST_STEPS,
    LATER_SHARE,
    LOOKS,
    UP_FRONT_SECONDS,
    next_look,
)
from traindoctor.capture.watch import Watch
from traindoctor.checks import laws
from traindoctor.checks.base import Check, NotJudged, Outcome, check, evidence
from traindoctor.diagnosis import consequences
from traindoctor.doctor import Doctor, Stopped
from traindoctor.doctor import watch as watch_block
from traindoctor.errors import ReplayError
from traindoctor.exams import agenda
from traindoctor.exams.base import Exam, TooEarly, exam
from traindoctor.experiment.patient import Patient
from traindoctor.record import Record, open_record


@check(
    code="TST001", slug="causal-mask-leak", title="Sees the future", wants=["peek"], law=laws.UNSEEN
)
def leak(record: Record) -> Outcome:
    """
    ## How to fix
    Mask it.
    """
    result = record.exam("peek")
    assert result is not None
    if result.values["moved"] == 0:
        return leak.clear("nothing moves")
    return leak.finding(
        evidence("moved", result.values["moved"], 0.0, noise=1e-6), grade="exact", since_step=0
    )


@check(code="TST002", slug="position-missing", title="Asks again and again")
def insists(record: Record) -> Outcome:
    return insists.not_judged("not yet", wants="again")


class Clinic:
    """Replaces the tables of checks and exams."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.exams: dict[str, Exam] = {}
        self.calls: list[tuple[str, int]] = []
        self.monkeypatch = monkeypatch
        monkeypatch.setattr(agenda, "load", lambda name: self.exams[name])

    def checks(self, *checks: Check) -> None:
        judge = engine.diagnose
        self.monkeypatch.setattr(doctor_module, "diagnose", functools.partial(judge, checks=checks))

    def add(self, name: str, cost: float, perform: Callable[[Any], dict[str, Any]]) -> None:
        def noted(patient: Any) -> dict[str, Any]:
            self.calls.append((name, 0))
            return perform(patient)

        self.exams[name] = exam(name=name, title=name, cost=cost, needs_tape=False)(noted)

    @property
    def table(self) -> dict[str, str]:
        return dict.fromkeys(self.exams, "test")


@pytest.fixture
def clinic(monkeypatch: pytest.MonkeyPatch) -> Clinic:
    return Clinic(monkeypatch)


@pytest.fixture
def watch(tmp_path: Path) -> Iterator[Watch]:
    made = Watch(tmp_path, rank=0, budget=0.02, replay=False, probes=[])
    made.attach()
    yield made
    made.close()


def train(steps: int) -> None:
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(4, 3)).pow(2).mean().backward()
        optimizer.step()


def test_looks_grow_geometrically() -> None:
    steps, looks = 1, []
    while steps < 10_000:
        looks.append(steps)
        steps = next_look(steps)
    assert looks[: len(LOOKS)] == list(LOOKS)
    assert len(looks) < 25


def test_what_is_wrong_from_the_start_is_proven_and_said_once(clinic: Clinic, watch: Watch) -> None:
    clinic.checks(leak)
    clinic.add("peek", 1, lambda patient: {"moved": 0.5})
    said = io.StringIO()
    doctor = Doctor(watch, stream=said, exams=clinic.table)
    train(30)
    assert doctor.proven == {"causal-mask-leak": 1}
    assert said.getvalue() == "traindoctor: step 1: causal-mask-leak confirmed: Sees the future\n"
    assert clinic.calls == [("peek", 0)]
    diagnosis = doctor.finish()
    assert diagnosis is not None
    assert diagnosis.verdict == "sick"
    record = open_record(watch.out)
    assert record.fact("doctor.proven") == {"causal-mask-leak": 1}
    assert record.fact("verdict")["verdict"] == "sick"
    assert record.fact("run.steps") == 30


def test_an_exam_asked_for_again_waits_until_the_run_is_twice_as_far(
    clinic: Clinic, watch: Watch
) -> None:
    clinic.checks(insists)
    clinic.add("again", 1, lambda patient: {})
    doctor = Doctor(watch, quiet=True, exams=clinic.table)
    train(100)
    steps = doctor.agenda.attempts["again"]
    assert steps[0] == 1
    assert all(later >= 2 * earlier for earlier, later in pairwise(steps))
    assert len(steps) <= agenda.MAX_ATTEMPTS


def test_what_a_later_step_will_tell_is_asked_again(clinic: Clinic, watch: Watch) -> None:
    """Refused on the first steps, and quickly: neither is it recorded as tried, nor is that its price."""
    clinic.checks(leak)

    def perform(patient: Patient) -> dict[str, float]:
        if patient.current_step < 10:
            raise TooEarly("only 9 batches were kept; 14 are needed")
        return {"moved": 0.5}

    clinic.add("peek", 5, perform)
    doctor = Doctor(watch, quiet=True, exams=clinic.table)
    train(3)
    watch.record_writer.flush()
    assert doctor.agenda.attempts == {"peek": [1]}
    assert open_record(watch.out).exam("peek") is None
    assert doctor.agenda.price("peek") >= 5 * doctor.watch.governor.step_seconds / 2
    train(30)
    diagnosis = doctor.finish()
    assert diagnosis is not None
    assert [cause.finding.cause for cause in diagnosis.causes] == ["causal-mask-leak"]


def test_a_costly_exam_waits_for_the_end(clinic: Clinic, watch: Watch) -> None:
    clinic.checks(leak)
    clinic.add("peek", 1e9, lambda patient: {"moved": 0.5})
    doctor = Doctor(watch, quiet=True, exams=clinic.table, after=30.0)
    train(5)
    assert clinic.calls == []
    doctor.agenda.prices["peek"] = 5.0  # a price that fits the time after the end, not the budget
    diagnosis = doctor.finish()
    assert clinic.calls == [("peek", 0)]
    assert diagnosis is not None
    assert diagnosis.verdict == "sick"


def test_what_is_proven_exactly_needs_no_experiment(clinic: Clinic, watch: Watch) -> None:
    clinic.checks(leak, insists)
    clinic.add("peek", 1, lambda patient: {"moved": 0.5})
    clinic.add("again", 100, lambda patient: {})
    doctor = Doctor(watch, quiet=True, exams=clinic.table)
    doctor.agenda.prices["again"] = 1e9
    train(3)
    doctor.agenda.prices["again"] = 0.0
    doctor.finish()
    assert clinic.calls == [("peek", 0)]


def test_no_time_after_means_no_exam_and_a_word_about_it(clinic: Clinic, watch: Watch) -> None:
    clinic.checks(leak)
    clinic.add("peek", 1e9, lambda patient: {"moved": 0.5})
    doctor = Doctor(watch, quiet=True, exams=clinic.table, after=0.5)
    train(5)
    doctor.finish()
    assert clinic.calls == []
    notes = [note.text for note in open_record(watch.out).notes]
    assert any("not enough time for peek" in note for note in notes)
    assert open_record(watch.out).fact("doctor.unmade") == ["peek"]


def test_a_refusal_at_a_slow_first_step_does_not_make_an_exam_expensive(clinic: Clinic) -> None:
    """Refused when a step took ten seconds, it is cheap again when steps are."""
    seconds = [10.0]

    def refuse(patient: Any) -> dict[str, Any]:
        raise ReplayError("nothing was printed yet")

    clinic.add("peek", 5, refuse)
    book = agenda.Agenda(
        Patient(), step_seconds=lambda: seconds[0], fault=print, exams=clinic.table
    )
    assert book.price("peek") == 50.0
    book.perform("peek", 1)
    seconds[0] = 0.01
    assert book.price("peek") < 1.0
    assert book.cheap("peek")


def test_what_was_refused_and_not_tried_again_for_lack_of_time_is_told(
    clinic: Clinic, watch: Watch
) -> None:
    def refuse(patient: Any) -> dict[str, Any]:
        raise ReplayError("nothing was printed yet")

    clinic.checks(leak)
    clinic.add("peek", 1, refuse)
    doctor = Doctor(watch, quiet=True, exams=clinic.table, after=0.0)
    doctor.agenda.perform("peek", 1)
    train(5)
    doctor.finish()
    assert open_record(watch.out).fact("doctor.unmade") == ["peek"]


def test_without_a_budget_nothing_is_examined_while_the_script_runs(
    clinic: Clinic, tmp_path: Path
) -> None:
    watch = Watch(tmp_path, rank=0, budget=0.0, replay=False, probes=[])
    watch.attach()
    clinic.checks(leak)
    clinic.add("peek", 1, lambda patient: {"moved": 0.5})
    doctor = Doctor(watch, quiet=True, exams=clinic.table)
    train(5)
    assert clinic.calls == []
    doctor.finish()
    assert clinic.calls == [("peek", 0)]


def test_the_allowance_is_the_credit_of_the_first_seconds(clinic: Clinic, watch: Watch) -> None:
    doctor = Doctor(watch, exams={})
    assert doctor.pace.allowance == pytest.approx(0.02 * UP_FRONT_SECONDS)
    doctor.pace.spent = 1.0
    assert doctor.pace.allowance == pytest.approx(0.02 * UP_FRONT_SECONDS - 1.0, abs=0.01)
    watch.governor.spent = 0.1  # probes and doctor together spend what a minute earns, no more
    assert doctor.pace.allowance == pytest.approx(0.02 * UP_FRONT_SECONDS - 1.1, abs=0.01)


def test_what_the_first_minute_left_over_is_not_spent_later(
    clinic: Clinic, watch: Watch, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A minute in which little was asked for is no reason for a burst of tests after it."""
    clock = [1000.0]
    monkeypatch.setattr("traindoctor.capture.pace.time.perf_counter", lambda: clock[0])
    pace = Doctor(watch, exams={}).pace
    watch.governor.end_step(0.1)
    pace.spent, clock[0] = 0.2, 1000.0 + 2 * UP_FRONT_SECONDS
    pace.anything_due(FIRST_STEPS - 1)
    assert pace.allowance == pytest.approx(
        0.02 * UP_FRONT_SECONDS - 0.2
    )  # but slow steps have time
    pace.anything_due(FIRST_STEPS)
    assert pace.allowance == pytest.approx(0.0)
    clock[0] += 100.0
    assert pace.allowance == pytest.approx(LATER_SHARE * 0.02 * 100.0)
    pace.spent += 0.3
    assert pace.allowance == pytest.approx(LATER_SHARE * 0.02 * 99.7 - 0.3, abs=0.01)


def test_after_the_first_minute_no_exam_is_let_in_on_trust(clinic: Clinic, watch: Watch) -> None:
    """An exam without a price is guessed from its steps: early that is enough, later it waits until that can be paid."""
    clinic.checks(leak)
    clinic.add("peek", 5, lambda patient: {"moved": 0.5})
    doctor = Doctor(watch, quiet=True, exams=clinic.table)
    watch.governor.end_step(0.1)
    doctor._open = [NotJudged("causal-mask-leak", "untested", wants="peek")]
    assert doctor._choose(1, 0.01) == "peek"
    watch.governor.run_seconds = 2 * UP_FRONT_SECONDS
    assert doctor._choose(1, 0.01) is None
    assert doctor._choose(1, 1.0) == "peek"
    assert doctor._choose(1, 0.01, ended=True) == "peek"


def test_what_is_settled_costs_the_script_no_more(clinic: Clinic, watch: Watch) -> None:
    assert "causal-mask-leak" not in consequences("position-missing")
    clinic.checks(leak, insists)
    clinic.add("peek", 1, lambda patient: {"moved": 0.5})
    clinic.add("again", 1, lambda patient: {})
    doctor = Doctor(watch, quiet=True, exams=clinic.table)
    train(3)
    assert clinic.calls == [("peek", 0)]
    doctor.finish()
    assert ("again", 0) in clinic.calls


def test_what_could_explain_the_cause_is_still_asked(clinic: Clinic, watch: Watch) -> None:
    @check(
        code="TST003",
        slug="gradient-not-flowing",
        title="No gradient",
        wants=["flow"],
        law=laws.REACHED,
    )
    def flows(record: Record) -> Outcome:
        return flows.finding(
            evidence("gradient", 0.0, 1.0, noise=1e-6), grade="exact", since_step=0
        )

    @check(code="TST004", slug="dead-activations", title="Never fires")
    def dead(record: Record) -> Outcome:
        return dead.not_judged("not yet", wants="units")

    assert "gradient-not-flowing" in consequences("dead-activations")
    clinic.checks(flows, dead)
    clinic.add("flow", 1, lambda patient: {})
    clinic.add("units", 3, lambda patient: {})
    Doctor(watch, quiet=True, exams=clinic.table)
    train(3)
    assert [name for name, _ in clinic.calls] == ["flow", "units"]


def test_stop_when_sick_ends_the_training(clinic: Clinic, watch: Watch) -> None:
    clinic.checks(leak)
    clinic.add("peek", 1, lambda patient: {"moved": 0.5})
    Doctor(watch, quiet=True, exams=clinic.table, stop_when_sick=True)
    with pytest.raises(Stopped, match="causal-mask-leak"):
        train(30)
    assert watch.step == 1


def test_an_exam_that_cannot_be_loaded_is_one_exam_less(clinic: Clinic, watch: Watch) -> None:
    clinic.checks(leak)
    doctor = Doctor(watch, quiet=True, exams={"peek": "nowhere"})
    train(5)
    diagnosis = doctor.finish()
    assert diagnosis is not None
    assert diagnosis.verdict == "inconclusive"
    assert watch.faults == []
    assert any("'peek' cannot be loaded" in note.text for note in open_record(watch.out).notes)


def test_replicas_leave_the_examining_to_rank_0(clinic: Clinic, tmp_path: Path) -> None:
    watch = Watch(tmp_path, rank=1, replay=False, probes=[])
    watch.attach()
    clinic.checks(leak)
    clinic.add("peek", 1, lambda patient: {"moved": 0.5})
    doctor = Doctor(watch, quiet=True, exams=clinic.table)
    train(5)
    assert doctor.finish() is None
    assert clinic.calls == []


def test_watch_as_a_block(tmp_path: Path) -> None:
    import traindoctor

    with traindoctor.watch(out=tmp_path, after=0.0, quiet=True) as doctor:
        train(3)
    assert doctor.diagnosis is not None
    assert doctor.diagnosis.steps == 3


@pytest.mark.parametrize(
    ("fault", "cause"), [("", None), ("twice", "double-softmax"), ("cut", "gradient-not-flowing")]
)
@pytest.mark.parametrize("later", [False, True], ids=["in turn", "afterwards"])
def test_each_optimizers_steps_are_examined(
    tmp_path: Path, fault: str, cause: str | None, later: bool
) -> None:
    """What is right in the steps of one optimizer says nothing of those of another."""
    torch.manual_seed(0)
    first = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 8))
    lower, upper = torch.nn.Linear(8, 16), torch.nn.Linear(16, 5)
    rates = torch.optim.Adam(first.parameters(), 1e-2)
    second = torch.optim.Adam([*lower.parameters(), *upper.parameters()], 1e-2)
    rule = torch.randn(8, 5)

    def one() -> None:
        x = torch.randn(32, 8)
        rates.zero_grad()
        torch.nn.functional.mse_loss(first(x), x).backward()
        rates.step()

    def other() -> None:
        x = torch.randn(32, 8)
        hidden = lower(x).tanh()
        scores = upper(hidden.detach() if fault == "cut" else hidden)
        scores = scores.softmax(-1) if fault == "twice" else scores
        second.zero_grad()
        torch.nn.functional.cross_entropy(scores, (x @ rule).argmax(1)).backward()
        second.step()

    with watch_block(out=tmp_path / "run", quiet=True, budget=1.0) as doctor:
        steps = [one] * 30 + [other] * 30 if later else [one, other] * 30
        for step in steps:
            step()
    assert doctor.diagnosis is not None
    found = [one.finding.cause for one in doctor.diagnosis.roots]
    assert found == ([] if cause is None else [cause])
