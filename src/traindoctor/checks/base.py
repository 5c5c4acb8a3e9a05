"""What a check is: a function of the record that judges one cause.

A check ends in one of four ways: a Finding with evidence, Clear (with what cleared it), NotApplicable (the run has
nothing that could have this fault), or NotJudged (with the reason and the exam it wants).
"""

import inspect
import math
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from traindoctor.checks.series_words import missing, said
from traindoctor.record import ExamResult, Record, Series

# How the evidence was got, from the surest to the weakest. DESIGN.md's order of instruments.
Grade = Literal["exact", "experiment", "statistic", "curve"]
Status = Literal["confirmed", "likely", "possible"]
# What a finding rests on: a broken law, a change that cures, or what a run shows without either.
Proof = Literal["law", "cure", "symptom"]
# Why a test could not be made.
Why = Literal[
    "too-few-steps", "not-measured", "not-possible", "not-made", "no-time", "check-failed"
]

# Said of a test that a check waits for.
NOT_YET = "not tested yet"
# Confidence runs from the first number to the second as the evidence outgrows its noise.
CONFIDENCE: dict[Grade, tuple[float, float]] = {
    "exact": (
        0.95,
        1.0,
    ),  # a right answer is known: equality, an exact zero, an identity of objects
    "experiment": (0.75, 0.95),  # one thing was changed beside a control, several orders of batches
    "statistic": (0.5, 0.85),  # a number against its distribution in healthy runs
    "curve": (0.2, 0.45),  # the shape of a curve alone
}
STATUSES: tuple[Status, ...] = ("confirmed", "likely", "possible")


@dataclass(frozen=True)
class Evidence:
    """One number that speaks for a finding, and what it should have been."""

    measure: str
    value: float | str | None
    expected: float | str | None = None
    noise: float | None = None
    step: int | None = None

    @property
    def ratio(self) -> float:
        """How many times its own noise the value is away from what was expected; 1 if unknown."""
        if not isinstance(self.value, int | float) or not isinstance(self.expected, int | float):
            return 1.0
        away = abs(float(self.value) - float(self.expected))
        if math.isnan(away) or not self.noise:
            return math.inf if away > 0 or math.isnan(away) else 1.0
        return max(1.0, away / self.noise)


def evidence(
    measure: str,
    value: float | str | Series | None,
    expected: float | str | None = None,
    *,
    noise: float | None = None,
    step: int | None = None,
) -> Evidence:
    """A series stands for its median, at the step of its first point."""
    if isinstance(value, Series):
        step = int(value.steps[0]) if step is None and len(value) else step
        value = value.median()
    return Evidence(measure, value, expected, noise, step)


def confidence(grade: Grade, items: Sequence[Evidence]) -> float:
    """The stated rule: from the grade's lower to its upper bound as 1 - 1/ratio of the best evidence."""
    low, high = CONFIDENCE[grade]
    ratio = max((item.ratio for item in items), default=1.0)
    return round(high if math.isinf(ratio) else low + (high - low) * (1 - 1 / ratio), 3)


@dataclass(frozen=True)
class Finding:
    """A cause that the record shows."""

    cause: str
    code: str
    grade: Grade
    status: Status
    confidence: float
    summary: str
    evidence: tuple[Evidence, ...]
    remedy: str
    where: str | None = None
    since_step: int | None = None
    line: str | None = None  # "train.py:54", where the script's line is known
    wants: str | None = None
    """The exam that would confirm, refute or place it: it is named all the same where there is no time for that."""
    law: str | None = None
    """The law that is broken, in a sentence."""
    undecided: str | None = None
    """Why a likely finding is not confirmed."""

    @property
    def proof(self) -> Proof:
        """Something exact that is no law's (a structure, a count) is a symptom all the same."""
        if self.law:
            return "law"
        return "cure" if self.grade == "experiment" else "symptom"


@dataclass(frozen=True)
class Clear:
    """The cause is ruled out; `by` says by which measurement."""

    cause: str
    by: str


@dataclass(frozen=True)
class NotJudged:
    """The cause can be neither named nor ruled out. `wants` names the exam that would decide."""

    cause: str
    reason: str
    wants: str | None = None
    why: Why = "not-possible"


@dataclass(frozen=True)
class NotApplicable:
    """The run has nothing that could have this fault: one process, no clipping, no text written."""

    cause: str
    reason: str


Outcome = Finding | Clear | NotJudged | NotApplicable


@dataclass(frozen=True)
class Check:
    """One cause, with all that the rest of the program knows of it: `check(record)` gives an Outcome."""

    code: str
    slug: str
    title: str
    judge: Callable[[Record], Outcome]
    needs: tuple[str, ...] = ()
    """Series without which nothing is judged, each with `min_steps` points."""
    wants: tuple[str, ...] = ()
    """Exams that have to be done first."""
    at_once: Callable[[Record], Outcome | None] | None = None
    """What is judged before any exam is asked for; None where it says nothing."""
    min_steps: int = 1
    law: str | None = None
    """What an exact finding proves broken, in a sentence."""
    undecided: str | None = None
    """Why a finding that rests on a number alone stays *likely*: which decisive test was not made."""
    explains: tuple[str, ...] = ()
    """The causes that this one brings about by itself: findings of them are its consequences."""
    urgent: bool = False
    """There from the first step and provable by it: worth asking about before anything else."""
    essential: bool = False
    """What a first training step can prove, of any model: no run is healthy to which it applies untested."""
    outcome_only: bool = False
    """How a run ends follows from how it was trained: never told before a cause inside the training."""
    costs_only_time: bool = False
    """It wastes time or memory while the model learns: advice, never a disease."""
    without_cure: bool = False
    """It stands where no change cured the run: as long as one that could was not tried, it is only possible."""
    of_optimizer: bool = False
    """It is about the state and the settings of torch's optimizers: without one it does not apply."""
    signs: tuple[str, ...] = ()
    """Symptoms that it may show itself by. One that no cause claims speaks for any."""
    over_batches: bool = False
    """It is about how batches follow each other: with one batch in hand nothing can be said."""

    @property
    def family(self) -> str:
        return self.code[:3]

    @property
    def docs(self) -> str:
        """The page of this cause, in Markdown: the docstring of its function."""
        return textwrap.dedent(inspect.getdoc(self.judge) or "")

    @property
    def remedy(self) -> str:
        """The text under 'How to fix'."""
        _, _, rest = self.docs.partition("## How to fix")
        return " ".join(rest.partition("\n## ")[0].split())

    def __call__(self, record: Record) -> Outcome:
        for name in self.needs:
            series = record.get(name) if name in record.names else record.layers(name)
            if series is None or len(series) == 0:
                if self.of_optimizer:
                    return without_optimizer(self, record)
                return NotJudged(self.slug, missing(name), why="not-measured")
            if len(series) < self.min_steps:
                reason = f"needs {self.min_steps} steps, saw {len(series)}"
                if len(series) < record.num_steps:
                    reason = f"needs {said(name)} on {self.min_steps} steps, saw {len(series)}"
                return NotJudged(self.slug, reason, why="too-few-steps")
        seen = self.at_once(record) if self.at_once is not None else None
        if seen is not None:
            return seen
        for name in self.wants:
            left_open = self.without(record, name)
            if left_open is not None:
                return left_open
        return self.judge(record)

    def without(self, record: Record, exam: str) -> Outcome | None:
        """What follows where the exam has no result to judge by; None where it has one."""
        result = record.exam(exam)
        if result is None:
            return NotJudged(self.slug, NOT_YET, wants=exam, why="not-made")
        if result.outcome == "not-applicable":
            return NotApplicable(self.slug, result.reason)
        if result.done:
            return None
        # What was refused on one step (nothing read yet, nothing taped) may be possible on a later one.
        return NotJudged(
            self.slug, result.reason, wants=exam if result.outcome == "refused" else None
        )

    def finding(
        self,
        *items: Evidence,
        grade: Grade,
        summary: str | None = None,
        remedy: str | None = None,
        where: str | None = None,
        since_step: int | None = None,
        line: str | None = None,
        status: Status | None = None,
        wants: str | None = None,
        undecided: str | None = None,
    ) -> Finding:
        """Status and confidence follow from the grade; `status` may only weaken it.

        Grades are never taken for granted: a law or a cure confirms, and all else (a number alone, a structure that is no
        law's) is likely where it is known why nothing decided it, and possible otherwise.
        """
        law = self.law if grade == "exact" else None
        decides = law is not None or grade == "experiment"
        undecided = None if decides or grade == "curve" else undecided or self.undecided
        best: Status = "confirmed" if decides else "likely" if undecided else "possible"
        if status is None or STATUSES.index(status) < STATUSES.index(best):
            status = best
        steps = [item.step for item in items if item.step is not None]
        return Finding(
            cause=self.slug,
            code=self.code,
            grade=grade,
            status=status,
            confidence=confidence(grade, items),
            summary=summary or self.title,
            evidence=items,
            remedy=remedy or self.remedy,
            where=where,
            since_step=since_step if since_step is not None else min(steps, default=None),
            line=line,
            wants=wants,
            law=law,
            undecided=undecided if status == "likely" else None,
        )

    def clear(self, by: str) -> Clear:
        """`by` is what was seen, in words of the field."""
        return Clear(self.slug, by)

    def not_judged(
        self, reason: str, *, wants: str | None = None, why: Why | None = None
    ) -> NotJudged:
        return NotJudged(self.slug, reason, wants, why or ("not-made" if wants else "not-possible"))

    def not_applicable(self, reason: str) -> NotApplicable:
        return NotApplicable(self.slug, reason)


# By then every look at a run has been made more than once.
ENOUGH_LOOKS = 12


def watched(record: Record) -> bool:
    """A process was watched, not a log read: what it never showed, it does not have."""
    return record.fact("env") is not None


def not_comparable(check: Check, kind: str, reason: str) -> Outcome:
    """Ranks that cannot be compared: there is only one, or not all are known."""
    return check.not_applicable(reason) if kind == "clear" else check.not_judged(reason)


def without_optimizer(check: Check, record: Record) -> Outcome:
    """No optimizer of torch has stepped."""
    if watched(record) and record.num_steps >= ENOUGH_LOOKS:
        return check.not_applicable("the script updates its weights without a PyTorch optimizer")
    return check.not_judged("no step of a PyTorch optimizer was seen", why="not-measured")


def without_text(check: Check, record: Record) -> Outcome:
    """No text was written while the run was watched."""
    if watched(record):
        return check.not_applicable("the run generates no text")
    return check.not_judged("it is not known whether the run generates text", why="not-measured")


def wanted_exam(record: Record, exam: str) -> ExamResult:
    """The result of an exam that the check names in `wants=`: it is done before the check judges."""
    result = record.exam(exam)
    assert result is not None
    return result


def done_exam(record: Record, exam: str) -> ExamResult | None:
    """The result of an exam, where it could be made."""
    result = record.exam(exam)
    return result if result is not None and result.done else None


def worth_asking(record: Record, exam: str) -> bool:
    """An exam that was never made, or was refused (too early, say) and the run has gone on since."""
    result = record.exam(exam)
    if result is None:
        return True
    return result.outcome == "refused" and result.step < record.num_steps - 1


def check(
    *, needs: Sequence[str] = (), wants: Sequence[str] = (), **declared: Any
) -> Callable[[Callable[[Record], Outcome]], Check]:
    """Makes a Check of a function; `declared` are its other fields. It registers nothing: checks/__init__.py finds it by
    its file."""

    def build(judge: Callable[[Record], Outcome]) -> Check:
        return Check(judge=judge, needs=tuple(needs), wants=tuple(wants), **declared)

    return build
