"""The engine runs every check, guards each, and orders the exams they want."""

from __future__ import annotations

import numpy as np
import pytest

from traindoctor.checks import BY_SLUG, CHECKS, laws
from traindoctor.checks.base import Clear, Finding, NotJudged, Outcome, check, evidence
from traindoctor.diagnosis import diagnose, examine, explain, overhead_percent, wanted
from traindoctor.diagnosis.engine import _as_it_ended, too_early, unmade
from traindoctor.diagnosis.verdict import Run, judge
from traindoctor.errors import TraindoctorError
from traindoctor.record import ExamResult, LayerSeries, Record, Series, make_record


@check(
    code="TST001", slug="double-softmax", title="A test cause", needs=["loss.root"], law=laws.INPUT
)
def sick(record: Record) -> Outcome:
    """
    ## How to fix
    Stop it.
    """
    if record["loss.root"].last < 5:
        return sick.clear("the loss is low")
    return sick.finding(
        evidence("loss", record["loss.root"].last, 1.0, noise=0.1, step=2), grade="exact"
    )


@check(code="TST002", slug="lr-too-low", title="A broken check")
def broken(record: Record) -> None:
    raise ZeroDivisionError("by zero")


@check(code="TST003", slug="position-missing", title="Asks", wants=["positions"])
def asks(record: Record) -> None:
    return None


def test_a_finding_makes_the_run_sick() -> None:
    diagnosis = diagnose(make_record({"loss.root": [1.0, 2.0, 9.0]}), checks=[sick])
    assert diagnosis.verdict == "sick"
    assert diagnosis.root is not None
    assert diagnosis.root.remedy == "Stop it."
    assert diagnosis.root.since_step == 2


def test_a_check_that_raises_judges_nothing_and_is_told() -> None:
    diagnosis = diagnose(make_record({"loss.root": [9.0]}), checks=[broken, sick])
    (open_,) = diagnosis.not_judged
    assert "by zero" in open_.reason
    assert "test_engine.py" in open_.reason
    assert diagnosis.notes[0].startswith("the test for lr-too-low failed")
    assert diagnosis.verdict == "sick"


def test_the_exam_that_decides_most_for_its_cost_comes_first() -> None:
    outcomes = [
        NotJudged("lr-too-low", "", wants="experiment"),
        NotJudged("lr-too-high", "", wants="experiment"),
        NotJudged("targets-misaligned", "", wants="shift"),
        NotJudged("overfitting", "", wants="held_out"),
        NotJudged("memory-leak", "too short"),
        Clear("double-softmax", "x"),
    ]
    wishes = wanted(outcomes, costs={"experiment": 400, "shift": 1, "held_out": 1})
    assert [wish.exam for wish in wishes] == ["shift", "held_out", "experiment"]
    assert wishes[2].causes == ("lr-too-low", "lr-too-high")


def test_a_finding_may_ask_for_the_exam_that_would_place_it() -> None:
    found = sick.finding(evidence("loss", 9.0), grade="exact", wants="guilty_module")
    [wish] = wanted([found, sick.finding(evidence("loss", 9.0), grade="exact")])
    assert (wish.exam, wish.causes) == ("guilty_module", ("double-softmax",))


def test_an_exam_done_is_not_wanted_again() -> None:
    assert [w.exam for w in wanted(examine(make_record(), checks=[asks]))] == ["positions"]
    assert wanted(examine(make_record(exams={"positions": {}}), checks=[asks])) == []


def test_overhead_is_own_time_over_the_scripts() -> None:
    record = make_record(
        {"self.seconds": [0.01] * 10}, facts={"self.listener_seconds": 0.1, "run.seconds": 10.2}
    )
    assert overhead_percent(record) == pytest.approx(2.0)
    assert diagnose(record).overhead_seconds == pytest.approx(0.2)
    running = make_record({"self.seconds": [0.01] * 10, "time.step": [1.0] * 10})
    assert overhead_percent(running) == pytest.approx(1.0)
    assert overhead_percent(make_record()) is None


def test_the_step_of_the_proof_is_told() -> None:
    record = make_record({"loss.root": [9.0]}, facts={"doctor.proven": {"double-softmax": 3}})
    assert diagnose(record, checks=[sick]).causes[0].proven_step == 3


def test_explain_takes_slug_and_code_and_suggests() -> None:
    for known in CHECKS[:3]:
        assert explain(known.slug) == explain(known.code) == explain(known.slug.replace("-", "_"))
    with pytest.raises(TraindoctorError, match="did you mean causal-mask-leak"):
        explain("causal-leak")
    with pytest.raises(TraindoctorError, match="no cause named 'grad'"):
        explain("grad")


def test_an_empty_record_is_inconclusive() -> None:
    assert diagnose(make_record()).verdict == "inconclusive"


def two_stages(*, again: bool | None) -> Record:
    """The first stage shares no layer; of the second it was not asked, or it does not (`again`), or it does."""
    results = [ExamResult("sharing", 0, "done", {"listed": [], "tied": [], "reused": []})]
    if again is not None:
        listed = [] if again else [{"modules": ["a", "b"], "times": 2, "of": 2}]
        results.append(
            ExamResult("sharing@1", 81, "done", {"listed": listed, "tied": [], "reused": []})
        )
    return make_record({"loss.root": [1.0] * 100}, facts={"stages.taped": [1]}, exams=results)


def test_a_later_stage_is_asked_again_and_judged_by_itself() -> None:
    check = BY_SLUG["weights-tied-by-mistake"]

    def outcome(again: bool | None) -> Outcome:
        return examine(two_stages(again=again), checks=[check])[0]

    asked = outcome(None)
    assert isinstance(asked, NotJudged)
    assert asked.wants == "sharing@1"
    assert isinstance(outcome(True), Clear)
    assert isinstance(outcome(False), Finding)


@pytest.mark.parametrize("begins", [{0: 1, 80: 2}, {0: 1}, {10 * n: n + 1 for n in range(8)}])
def test_nothing_is_pooled_over_the_beginning_of_a_new_optimizer(begins: dict[int, int]) -> None:
    """Updates are lost in the second stage only; an optimizer that is made anew all the time begins none."""
    lost = LayerSeries(
        "update.lost",
        ("weight",),
        np.array([1, 16, 40, 60, 70, 100, 140]),
        np.array([[0.0]] * 5 + [[0.9]] * 2, dtype=np.float32),
    )
    began = Series("optim.objects", np.array([*begins]), np.array([*begins.values()], dtype=float))
    record = Record(
        series={"optim.objects": began}, layers={"update.lost": lost}, facts={"run.steps": 160}
    )
    [outcome] = examine(record, checks=[BY_SLUG["low-precision-updates-lost"]])
    assert isinstance(outcome, Finding if len(begins) == 2 else Clear)


def test_a_test_that_was_stopped_leaves_the_run_open() -> None:
    asked = NotJudged("lr-too-high", "stopped after 60 s", wants="experiment_rate_down")
    stopped = ExamResult("experiment_rate_down", 9, "refused", {"stopped": True}, "stopped")
    record = make_record(exams=[stopped])
    assert unmade(record, [asked]) == ("experiment_rate_down",)
    run = Run(30, unmade=unmade(record, [asked]))
    judged = judge([asked, *[Clear("memory-leak", "flat")] * 3], run)
    assert judged.verdict == "inconclusive"


@pytest.mark.parametrize(("values", "left"), [({"too_early": True}, ("zero_factors",)), ({}, ())])
def test_what_was_too_early_and_had_no_later_step_was_not_made(
    values: dict[str, bool], left: tuple[str, ...]
) -> None:
    record = make_record(exams=[ExamResult("zero_factors", 0, "refused", values, "too early")])
    asked = NotJudged("init-too-small", "asked again later", wants="zero_factors")
    assert too_early(record, [asked]) == left
    assert unmade(record, [asked]) == ()
    judged = judge([asked, *[Clear("memory-leak", "flat")] * 3], Run(30, too_early=left))
    assert judged.verdict == ("inconclusive" if left else "healthy")
    if left:
        assert judged.decides == "traindoctor run --budget 10 SCRIPT"


def test_a_run_for_which_there_was_no_time_is_told_with_the_command() -> None:
    @check(code="TST050", slug="position-missing", title="No order", wants=["later"])
    def order(record: Record) -> Outcome:
        return order.clear("looked at")

    @check(code="TST052", slug="memory-leak", title="Grows")
    def clear(record: Record) -> Outcome:
        return clear.clear("looked at")

    checks = [order, clear, clear]
    steps = {"loss.root": [1.0] * 30}
    facts = {"doctor.unmade": ["later"], "script": {"path": "a b.py", "argv": ["--lr", "1"]}}
    judged = diagnose(make_record(steps, facts=facts), checks=checks)
    assert judged.verdict == "inconclusive"
    assert judged.reason == "no time was left to test position-missing"
    assert judged.reproduce == "traindoctor run 'a b.py' --lr 1"
    assert judged.decides == "traindoctor run --after 120 'a b.py' --lr 1"
    facts["script"] = {"path": "a.b", "argv": ["--lr", "1"], "module": True}
    judged = diagnose(make_record(steps, facts=facts), checks=checks)
    assert judged.reproduce == "traindoctor run -m a.b --lr 1"
    assert diagnose(make_record(steps), checks=checks).verdict == "healthy"


def test_a_record_without_an_end_is_not_called_healthy() -> None:
    @check(code="TST053", slug="position-missing", title="No order")
    def clear(record: Record) -> Outcome:
        return clear.clear("looked at")

    steps = {"loss.root": [1.0] * 30}
    watched = {"env": {"device": "cpu"}}
    running = make_record(steps, facts=watched)
    ended = make_record(steps, facts=watched | {"run.ended": 0})
    assert diagnose(running, checks=[clear]).verdict == "running"
    assert diagnose(ended, checks=[clear]).verdict == "healthy"
    full = diagnose(running, checks=[clear], ended_early="no space left on device")
    assert full.verdict == "inconclusive"
    assert full.reason == "the run was only watched for 30 steps: no space left on device"


def test_a_test_that_was_to_be_made_again_and_was_not_leaves_the_run_open() -> None:
    @check(code="TST054", slug="position-missing", title="No order")
    def again(record: Record) -> Outcome:
        return again.not_judged("order tells nothing yet", wants="positions")

    record = make_record(
        {"loss.root": [1.0] * 30},
        exams={"positions": {"pairs": []}},
        facts={"env": {"device": "cpu"}, "run.ended": 0},
    )
    judged = diagnose(record, checks=[again])
    assert judged.verdict == "inconclusive"
    assert judged.reason == "no time was left to test position-missing"


@pytest.mark.parametrize(
    ("outcome", "values", "why"),
    [
        ("refused", {}, "not-possible"),
        ("done", {}, "not-possible"),
        ("refused", {"stopped": True}, "not-made"),
        ("refused", {"too_early": True}, "not-made"),
        (None, {}, "not-made"),
    ],
)
def test_what_was_asked_and_could_not_be_answered_does_not_lack_time(
    outcome: str | None, values: dict[str, bool], why: str
) -> None:
    reason = "the loss contains gradients of gradients"
    exams = (
        [] if outcome is None else [ExamResult("tape_gradient", 0, outcome, values, reason, 0.1)]
    )
    left = NotJudged("backward-incorrect", reason, wants="tape_gradient", why="not-made")
    ended = _as_it_ended(make_record(exams=exams), left)
    assert isinstance(ended, NotJudged)
    assert ended.why == why
