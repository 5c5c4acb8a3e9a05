"""How findings become a verdict."""

from __future__ import annotations

import pytest

from traindoctor.checks.base import (
    STATUS,
    Clear,
    Evidence,
    Finding,
    Grade,
    NotJudged,
    Status,
    confidence,
)
from traindoctor.diagnosis.symptoms import Symptom
from traindoctor.diagnosis.verdict import judge, rank


def found(
    cause: str, grade: Grade = "exact", status: Status | None = None, since: int | None = 0
) -> Finding:
    items = (Evidence("x", 2.0, 1.0, 0.1, since),)
    return Finding(
        cause, "XXX001", grade, status or STATUS[grade], confidence(grade, items), cause, items, "fix",
        since_step=since,
    )  # fmt: skip


def order(*findings: Finding) -> list[str]:
    return [cause.finding.cause for cause in rank(findings)]


CLEARED = [Clear(f"c{i}", "a test") for i in range(9)]


def test_exact_before_experiment_before_statistic() -> None:
    assert order(
        found("position-missing", "statistic"),
        found("weight-decay-too-high", "experiment"),
        found("double-softmax"),
    ) == ["double-softmax", "weight-decay-too-high", "position-missing"]


def test_root_before_its_consequence_whatever_its_confidence() -> None:
    assert order(found("gradients-exploding", "statistic"), found("lr-too-high", "statistic")) == [
        "lr-too-high",
        "gradients-exploding",
    ]


def test_consequences_are_listed_under_the_root() -> None:
    first, second = rank([found("clip-too-tight"), found("missing-zero-grad")])
    assert first.finding.cause == "missing-zero-grad"
    assert first.consequences == ("clip-too-tight",)
    assert second.explained_by == ("missing-zero-grad",)


def test_an_experiment_never_hides_an_exact_finding() -> None:
    causes = rank([found("gradient-not-flowing"), found("lr-too-high", "experiment")])
    assert [c.finding.cause for c in causes] == ["gradient-not-flowing", "lr-too-high"]
    assert causes[0].is_root


def test_what_arose_later_follows_from_what_was_there() -> None:
    causes = rank([found("nan-from-op", since=60), found("lr-too-high", "experiment")])
    assert [c.finding.cause for c in causes] == ["lr-too-high", "nan-from-op"]


def test_what_was_there_at_step_0_does_not_follow_from_training() -> None:
    assert order(found("nan-from-op", since=0), found("lr-too-high", "experiment")) == [
        "nan-from-op",
        "lr-too-high",
    ]


def test_a_possible_root_explains_nothing() -> None:
    causes = rank([found("lr-too-high", "curve"), found("gradients-exploding", "statistic")])
    assert [c.finding.cause for c in causes] == ["gradients-exploding", "lr-too-high"]
    assert causes[0].is_root


def test_time_lost_is_told_after_learning_lost() -> None:
    assert order(found("memory-leak"), found("targets-misaligned")) == [
        "targets-misaligned",
        "memory-leak",
    ]


def test_overfitting_is_told_after_a_cause_inside_the_training() -> None:
    assert order(found("overfitting"), found("adam-settings-bad", "statistic"))[0] == (
        "adam-settings-bad"
    )


@pytest.mark.parametrize("grade", ["exact", "experiment", "statistic"])
def test_sick_with_a_proven_or_likely_cause(grade: Grade) -> None:
    assert judge([found("double-softmax", grade)], [], steps=30).verdict == "sick"


def test_a_guess_alone_is_not_sick() -> None:
    verdict = judge([*CLEARED, found("lr-too-low", "curve")], [], steps=30)
    assert verdict.verdict == "healthy"
    assert verdict.root is None


def test_a_guess_beside_a_symptom_is_inconclusive() -> None:
    outcomes = [*CLEARED, found("lr-too-low", "curve")]
    assert judge(outcomes, [Symptom("loss-flat", "flat")], steps=30).verdict == "inconclusive"


def test_a_grave_symptom_without_a_cause_is_inconclusive() -> None:
    symptom = Symptom("loss-not-finite", "the loss is NaN", 3, grave=True)
    diagnosis = judge(CLEARED, [symptom], steps=30)
    assert diagnosis.verdict == "inconclusive"
    assert "the loss is NaN" in diagnosis.reason


def test_a_light_symptom_alone_leaves_a_run_healthy() -> None:
    assert judge(CLEARED, [Symptom("loss-flat", "flat")], steps=30).verdict == "healthy"


def test_nothing_seen_is_inconclusive() -> None:
    assert judge(CLEARED, [], steps=0).verdict == "inconclusive"


def test_too_little_judged_is_inconclusive() -> None:
    outcomes = [Clear("a", "x"), *(NotJudged(f"n{i}", "not recorded") for i in range(20))]
    diagnosis = judge(outcomes, [], steps=100)
    assert diagnosis.verdict == "inconclusive"
    assert "1 of 21" in diagnosis.reason


def test_print_names_the_roots_only() -> None:
    text = str(judge([found("missing-zero-grad"), found("clip-too-tight")], [], steps=9))
    assert text.splitlines()[0] == "sick: missing-zero-grad"
    assert "clip-too-tight" not in text
