"""How findings become a verdict."""

from __future__ import annotations

from typing import Any

import pytest

from traindoctor.checks import BY_SLUG
from traindoctor.checks.base import (
    Clear,
    Evidence,
    Finding,
    Grade,
    NotApplicable,
    NotJudged,
    Outcome,
    Status,
    confidence,
)
from traindoctor.diagnosis.rules import COSTS_ONLY_TIME, ESSENTIAL
from traindoctor.diagnosis.symptoms import Symptom
from traindoctor.diagnosis.verdict import (
    GRADES,
    Diagnosis,
    Run,
    judge,
    rank,
)

USUAL: dict[Grade, Status] = {
    "exact": "confirmed",
    "experiment": "confirmed",
    "statistic": "likely",
    "curve": "possible",
}


def found(
    cause: str, grade: Grade = "exact", status: Status | None = None, since: int | None = 0
) -> Finding:
    items = (Evidence("x", 2.0, 1.0, 0.1, since),)
    return Finding(
        cause, "XXX001", grade, status or USUAL[grade], confidence(grade, items), cause, items, "fix",
        since_step=since, law=BY_SLUG[cause].law if grade == "exact" and cause in BY_SLUG else None,
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


def test_overfitting_is_told_after_a_cause_inside_the_training() -> None:
    assert order(found("overfitting"), found("adam-settings-bad", "statistic"))[0] == (
        "adam-settings-bad"
    )


def verdict_of(*outcomes: Outcome, steps: int = 30, **run: Any) -> Diagnosis:
    return judge(outcomes, Run(steps=steps, **run))


FLAT = (Symptom("loss-flat", "flat"),)


@pytest.mark.parametrize("grade", ["exact", "experiment", "statistic"])
def test_sick_with_a_proven_or_likely_cause(grade: Grade) -> None:
    assert verdict_of(found("double-softmax", grade)).verdict == "sick"


def test_what_stands_where_nothing_cures_waits_for_the_cures() -> None:
    faded = found("gradients-vanishing", "statistic")
    untried = NotJudged("lr-too-high", "not tried", wants="experiment_rate_down", why="not-made")
    assert verdict_of(*CLEARED, faded, untried).verdict == "sick"
    late = verdict_of(*CLEARED, faded, untried, unmade=("experiment_rate_down",))
    assert late.verdict == "inconclusive"
    assert late.causes[0].finding.status == "possible"
    assert "--after" in str(late.decides)
    proven = found("gradient-not-flowing")
    assert verdict_of(proven, untried, unmade=("experiment_rate_down",)).verdict == "sick"


def test_every_finding_names_its_proof() -> None:
    proofs = {grade: found("missing-zero-grad", grade).proof for grade in GRADES}
    assert proofs == {
        "exact": "law",
        "experiment": "cure",
        "statistic": "symptom",
        "curve": "symptom",
    }
    assert found("missing-zero-grad").law == "gradients of earlier steps do not leak into this one"
    assert found("missing-zero-grad", "statistic").law is None


def test_steps_that_were_not_listened_to_make_no_run_healthy() -> None:
    diagnosis = verdict_of(*CLEARED, steps=300, measured=19, command="traindoctor run train.py")
    assert diagnosis.verdict == "inconclusive"
    assert "19 of 300 steps" in diagnosis.reason
    assert diagnosis.decides == "traindoctor run --budget 10 train.py"
    assert verdict_of(*CLEARED, steps=300, measured=20).verdict == "healthy"


def test_healthy_says_what_passed_in_how_many_steps_and_what_was_not_tested() -> None:
    left = NotJudged("overfitting", "no validation loss was seen", why="not-measured")
    beside = NotApplicable("ranks-diverged", "one process trains")
    diagnosis = verdict_of(*CLEARED, left, beside, steps=240)
    assert diagnosis.verdict == "healthy"
    assert diagnosis.reason == "9 of 10 applicable tests pass, 1 could not be run"
    assert [one.cause for one in diagnosis.not_judged] == ["overfitting"]


@pytest.mark.parametrize("steps", [1, 19])
def test_a_short_run_is_not_healthy(steps: int) -> None:
    diagnosis = verdict_of(*CLEARED, steps=steps)
    assert diagnosis.verdict == "inconclusive"
    assert "too few to call a run healthy; 20 are needed" in diagnosis.reason
    assert diagnosis.decides == "train for at least 20 steps"
    assert verdict_of(found("missing-zero-grad"), steps=steps).verdict == "sick"


def test_what_ran_out_of_time_is_inconclusive_with_the_command_that_decides() -> None:
    left = NotJudged("lr-too-high", "not tested yet", wants="experiment", why="not-made")
    run = {"unmade": ("experiment",), "command": "traindoctor run train.py --lr 1"}
    diagnosis = verdict_of(*CLEARED, left, **run)
    assert diagnosis.verdict == "inconclusive"
    assert diagnosis.reason == "no time was left to test lr-too-high"
    assert diagnosis.decides == "traindoctor run --after 120 train.py --lr 1"
    assert [one.why for one in diagnosis.not_judged] == ["no-time"]
    outcome = NotJudged("undertrained", "not tested yet", wants="experiment")
    assert verdict_of(*CLEARED, outcome, **run).verdict == "healthy"  # says nothing of the training


@pytest.mark.parametrize("cause", sorted(ESSENTIAL))
def test_without_a_law_that_applies_no_run_is_healthy(cause: str) -> None:
    diagnosis = verdict_of(*CLEARED, NotJudged(cause, "the loss is written by hand"))
    assert diagnosis.verdict == "inconclusive"
    assert diagnosis.reason == f"{cause} could not be tested: the loss is written by hand"
    assert verdict_of(*CLEARED, NotApplicable(cause, "no tokens")).verdict == "healthy"


def test_a_test_of_the_first_step_that_was_never_made_is_told_so() -> None:
    cause = min(ESSENTIAL)
    unmade = NotJudged(cause, "not tested yet", wants="some_exam", why="not-made")
    diagnosis = judge([*CLEARED, unmade], Run(steps=100, command="traindoctor run train.py"))
    assert diagnosis.verdict == "inconclusive"
    assert diagnosis.reason == f"{cause} was not tested before the run ended"
    assert diagnosis.decides == "traindoctor run --after 120 train.py"


def test_a_run_that_goes_on_is_not_called_healthy() -> None:
    diagnosis = verdict_of(*CLEARED, steps=5, running=True)
    assert (diagnosis.verdict, diagnosis.reason) == (
        "running",
        "nothing found so far in 5 steps",
    )
    assert verdict_of(found("missing-zero-grad"), running=True).verdict == "sick"


def test_a_watch_that_ended_early_is_inconclusive() -> None:
    diagnosis = verdict_of(*CLEARED, ended_early="several threads train")
    assert diagnosis.verdict == "inconclusive"
    assert diagnosis.reason == "the run was only watched for 30 steps: several threads train"


@pytest.mark.parametrize("cause", sorted(COSTS_ONLY_TIME))
def test_what_only_costs_time_or_memory_is_advice_and_no_disease(cause: str) -> None:
    diagnosis = verdict_of(*CLEARED, found(cause))
    assert diagnosis.verdict == "healthy"
    assert not diagnosis.causes
    assert [one.cause for one in diagnosis.advice] == [cause]


def test_the_important_open_tests_come_first() -> None:
    names = ["greedy-repetition", "position-missing", "backward-incorrect"]
    diagnosis = verdict_of(*CLEARED, *(NotJudged(name, "no") for name in names))
    assert [one.cause for one in diagnosis.not_judged] == names[::-1]


def test_a_guess_alone_is_not_sick() -> None:
    verdict = verdict_of(*CLEARED, found("lr-too-low", "curve"))
    assert verdict.verdict == "healthy"
    assert verdict.root is None


def test_a_guess_beside_a_symptom_is_inconclusive() -> None:
    outcomes = [*CLEARED, found("lr-too-low", "curve")]
    assert verdict_of(*outcomes, symptoms=FLAT).verdict == "inconclusive"


def test_a_grave_symptom_without_a_cause_is_inconclusive() -> None:
    symptom = Symptom("loss-not-finite", "the loss is NaN", 3, grave=True)
    diagnosis = verdict_of(*CLEARED, symptoms=(symptom,))
    assert diagnosis.verdict == "inconclusive"
    assert "the loss is NaN" in diagnosis.reason


def test_a_light_symptom_alone_leaves_a_run_healthy() -> None:
    assert verdict_of(*CLEARED, symptoms=FLAT).verdict == "healthy"


def test_nothing_seen_is_inconclusive() -> None:
    assert verdict_of(*CLEARED, steps=0).verdict == "inconclusive"


def test_too_little_judged_is_inconclusive() -> None:
    outcomes = [Clear("a", "x"), *(NotJudged(f"n{i}", "not seen") for i in range(20))]
    diagnosis = verdict_of(*outcomes, steps=100)
    assert diagnosis.verdict == "inconclusive"
    assert "1 of 21" in diagnosis.reason


def test_print_names_the_roots_only() -> None:
    text = str(verdict_of(found("missing-zero-grad"), found("clip-too-tight"), steps=9))
    assert text.splitlines()[0] == "sick: missing-zero-grad"
    assert "clip-too-tight" not in text


def test_a_possible_cause_leaves_a_run_open_only_with_a_symptom_that_it_explains() -> None:
    """Shared layers do not clip gradients."""
    shared = found("weights-tied-by-mistake", status="possible")
    tight = found("clip-too-tight", status="possible")
    clipped = Symptom("always-clipped", "100 % are clipped")

    def verdict(*outcomes: Outcome) -> str:
        return verdict_of(*CLEARED, *outcomes, steps=100, symptoms=(clipped,)).verdict

    assert verdict(shared) == "healthy"
    assert verdict(tight) == "inconclusive"
    assert verdict(shared, tight) == "inconclusive"
