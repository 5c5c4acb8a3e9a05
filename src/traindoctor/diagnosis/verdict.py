"""Ranks findings into a verdict: healthy, sick or inconclusive; running while nothing is found yet."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from traindoctor.checks.base import (
    STATUSES,
    Clear,
    Finding,
    Grade,
    NotApplicable,
    NotJudged,
    Outcome,
)
from traindoctor.diagnosis.rules import (
    COSTS_ONLY_TIME,
    ESSENTIAL,
    EXPLAINS,
    OUTCOME_ONLY,
    WITHOUT_CURE,
    consequences,
    may_show,
)
from traindoctor.diagnosis.symptoms import Symptom
from traindoctor.record.wording import counted, some_of

Verdict = Literal["healthy", "sick", "inconclusive", "running"]

GRADES: tuple[Grade, ...] = ("exact", "experiment", "statistic", "curve")
# A "healthy" rests on tests that were made: of what applies, on half at least (a log of losses: on none; a run that could
# not be replayed: on a fifth; one that could, of any kind: on three quarters and more).
MIN_PASSED_SHARE = 0.5
# The tests of rates and schedules need so many steps; before them a run can be found sick, not healthy.
ENOUGH_STEPS = 20
# How a command that attaches to a script begins.
RUN = "traindoctor run "
# What shows within these steps was built in, not brought about by training.
EARLY = 5


@dataclass(frozen=True)
class Cause:
    """A finding in its place: a root with its consequences, or a consequence with what explains it."""

    finding: Finding
    consequences: tuple[str, ...] = ()
    explained_by: tuple[str, ...] = ()
    proven_step: int | None = None
    """Completed steps when the doctor first had the proof; None: only afterwards."""
    fix: str | None = None
    """A unified diff of the script, where the change is mechanical."""

    @property
    def is_root(self) -> bool:
        return not self.explained_by


@dataclass(frozen=True)
class Diagnosis:
    """`print(diagnosis)` says it in a few lines; report/ says it in full."""

    verdict: Verdict
    reason: str
    causes: tuple[Cause, ...]
    ruled_out: tuple[Clear, ...]
    not_judged: tuple[NotJudged, ...]
    not_applicable: tuple[NotApplicable, ...]
    symptoms: tuple[Symptom, ...]
    steps: int
    advice: tuple[Finding, ...] = ()
    """What costs time or memory while the model learns."""
    decides: str | None = None
    """Where the verdict is inconclusive: what to run or to give for a decision."""
    reproduce: str | None = None
    """The command that makes this verdict again."""
    measured: int | None = None
    """Of the steps, those that were measured."""
    overhead_percent: float | None = None
    overhead_seconds: float | None = None
    """Most of it is spent on the first steps: in a short script its share is large."""
    after_seconds: float | None = None
    """Tests that were made when the script had ended."""
    notes: tuple[str, ...] = ()
    verified: Mapping[str, Any] | None = None
    """What a change of the script did (compare/verification.py)."""

    @property
    def applicable(self) -> int:
        """Tests that this run could have failed."""
        return len(self.ruled_out) + len(self.not_judged) + len(self.causes)

    @property
    def passed(self) -> int:
        return len(self.ruled_out)

    @property
    def roots(self) -> tuple[Cause, ...]:
        return tuple(cause for cause in self.causes if cause.is_root)

    @property
    def root(self) -> Finding | None:
        """The first cause, where the verdict is sick."""
        return self.causes[0].finding if self.causes and self.verdict == "sick" else None

    def __str__(self) -> str:
        lines = [f"{self.verdict}: {self.reason}"]
        for cause in self.roots:
            found = cause.finding
            lines.append(
                f"  {found.cause} ({found.status}, {found.confidence:.2f}): {found.summary}"
            )
        return "\n".join(lines)


def rank(findings: Iterable[Finding]) -> tuple[Cause, ...]:
    """Roots first, best proven first, then their consequences in the same order."""
    found = sorted(findings, key=_strength)
    # Only what is likely or confirmed may explain: a guess must not hide a proof.
    able = [finding for finding in found if finding.status != "possible"]
    blame = {f.cause: tuple(x.cause for x in able if explains(x, f)) for f in found}
    placed = [
        Cause(f, tuple(x.cause for x in found if f.cause in blame[x.cause]), blame[f.cause])
        for f in found
    ]
    return tuple(sorted(placed, key=_place))


def explains(root: Finding, other: Finding) -> bool:
    """Whether `root` makes `other` a consequence: by the rules, and never a proof by a weaker one.

    The one exception is time: what only arose later (a NaN, dead units) may follow directly from what
    was there before, though its own measurement is exact.
    """
    if other.cause not in consequences(root.cause):
        return False
    if GRADES.index(root.grade) <= GRADES.index(other.grade):
        return True
    arose = other.since_step or 0
    return other.cause in EXPLAINS[root.cause] and arose > max(EARLY, root.since_step or 0)


def _strength(finding: Finding) -> tuple[int, int, float]:
    return (STATUSES.index(finding.status), GRADES.index(finding.grade), -finding.confidence)


def _place(cause: Cause) -> tuple[int, bool, bool, int, int, int, float, str]:
    finding = cause.finding
    return (
        STATUSES.index(finding.status) // 2,  # a guess stands behind every finding
        not cause.is_root,
        finding.cause in OUTCOME_ONLY,
        STATUSES.index(finding.status),
        GRADES.index(finding.grade),
        -len(cause.consequences),
        -finding.confidence,
        finding.cause,
    )


@dataclass(frozen=True)
class Run:
    """What is known of a run beside the outcomes of its checks."""

    steps: int
    measured: int | None = None
    """Of these, those that were measured; None: all."""
    symptoms: tuple[Symptom, ...] = ()
    running: bool = False
    unmade: tuple[str, ...] = ()
    """Exams that were wanted and for which there was no time."""
    too_early: tuple[str, ...] = ()
    """Those that wanted a later step than any that was replayed."""
    ended_early: str | None = None
    """Why the rest of the run was not watched."""
    enough_steps: int = ENOUGH_STEPS
    command: str | None = None
    """How it was started."""
    proven: Mapping[str, int] = field(default_factory=dict)
    """Completed steps when the doctor first had the proof of a cause."""


def judge(outcomes: Sequence[Outcome], run: Run, **more: Any) -> Diagnosis:
    """The verdict over all checks' outcomes. `more`: fields of the Diagnosis that decide nothing."""
    open_ = tuple(
        replace(one, why="no-time") if one.wants in run.unmade else one
        for one in outcomes
        if isinstance(one, NotJudged)
    )
    untried = {other for o in open_ if o.why == "no-time" for other in consequences(o.cause)}
    findings = [
        replace(one, status="possible", undecided=None)
        if one.cause in WITHOUT_CURE & untried and one.proof == "symptom"
        else one
        for one in outcomes
        if isinstance(one, Finding)
    ]
    causes = tuple(
        replace(cause, proven_step=run.proven.get(cause.finding.cause))
        for cause in rank(one for one in findings if one.cause not in COSTS_ONLY_TIME)
    )
    made = Diagnosis(
        "inconclusive",
        "",
        causes,
        tuple(one for one in outcomes if isinstance(one, Clear)),
        tuple(sorted(open_, key=_importance)),
        tuple(one for one in outcomes if isinstance(one, NotApplicable)),
        run.symptoms,
        run.steps,
        tuple(one for one in findings if one.cause in COSTS_ONLY_TIME),
        measured=run.measured,
        **more,
    )
    verdict, reason, decides = _verdict(made, run)
    return replace(made, verdict=verdict, reason=reason, decides=decides, reproduce=run.command)


def _importance(left: NotJudged) -> tuple[bool, bool, int]:
    """What a first step can prove comes first, the mere outcome of a run last."""
    return (left.cause not in ESSENTIAL, left.cause in OUTCOME_ONLY, -len(consequences(left.cause)))


def _verdict(made: Diagnosis, run: Run) -> tuple[Verdict, str, str | None]:
    """Verdict, reason, and what would decide where it is open."""
    proven = [cause for cause in made.causes if cause.finding.status != "possible"]
    if proven:
        return "sick", proven[0].finding.summary, None
    if run.running and not run.ended_early:
        return "running", f"nothing found so far in {counted(run.steps, 'step')}", None
    grave = [symptom for symptom in run.symptoms if symptom.grave]
    if grave:
        text = f"{grave[0].summary}, and no test could name the cause"
        return "inconclusive", text, _longer(run, made)
    for symptom in run.symptoms:
        for cause in (one.finding.cause for one in made.causes):
            if may_show(cause, symptom.name):
                text = f"{symptom.summary}; {cause} is possible, not proven"
                return "inconclusive", text, _longer(run, made)
    open_ = _open(made, run)
    if open_ is not None:
        return "inconclusive", *open_
    return "healthy", _passed(made), None


def _open(made: Diagnosis, run: Run) -> tuple[str, str | None] | None:
    """Why a run of which nothing speaks ill cannot be called healthy."""
    if run.ended_early:
        return f"the run was only watched for {counted(run.steps, 'step')}: {run.ended_early}", None
    if run.steps == 0:
        return "no training step was seen", None
    late = [
        one for one in made.not_judged if one.why == "no-time" and one.cause not in OUTCOME_ONLY
    ]
    if late:
        text = f"no time was left to test {_named(late)}"
        return text, more_time(run.command)
    early = [one for one in made.not_judged if one.wants in run.too_early]
    if early:
        text = f"{_named(early)} can only be tested on a later step than those that were examined"
        return text, more_budget(run.command)
    if run.steps < run.enough_steps:
        text = f"{counted(run.steps, 'step')} are too few to call a run healthy; {run.enough_steps} are needed"
        return text, f"train for at least {run.enough_steps} steps"
    # Fewer losses make no course of the loss, either.
    enough = min(ENOUGH_STEPS, run.enough_steps)
    if run.measured is not None and run.measured < enough:
        text = (
            f"the budget allowed for measuring only {run.measured} of {counted(run.steps, 'step')}; {enough} are "
            "needed"
        )
        return text, more_budget(run.command)
    essential = [one for one in made.not_judged if one.cause in ESSENTIAL]
    if essential and essential[0].why == "not-made":
        return f"{_named(essential[:1])} was not tested before the run ended", more_time(
            run.command
        )
    if essential:
        return f"{essential[0].cause} could not be tested: {essential[0].reason}", None
    if made.passed < MIN_PASSED_SHARE * made.applicable:
        return f"only {_passed(made)}", None
    return None


def _passed(made: Diagnosis) -> str:
    """'38 of 40 applicable tests pass, 2 could not be run'"""
    text = f"{made.passed} of {made.applicable} applicable tests pass"
    left = len(made.not_judged)
    return f"{text}, {left} could not be run" if left else text


def _longer(run: Run, made: Diagnosis) -> str | None:
    late = any(one.why == "no-time" for one in made.not_judged)
    return more_time(run.command) if late else None


def more_time(command: str | None) -> str:
    """The command again, with more time for tests after the script's end."""
    return _again(command, "--after 120")


def more_budget(command: str | None) -> str:
    """The command again, with more steps listened to."""
    return _again(command, "--budget 10")


def _again(command: str | None, option: str) -> str:
    script = "SCRIPT" if command is None else command.removeprefix(RUN)
    return f"{RUN}{option} {script}"


def _named(items: Sequence[NotJudged], most: int = 3) -> str:
    return some_of(list(dict.fromkeys(one.cause for one in items)), most)
