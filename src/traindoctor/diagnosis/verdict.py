"""Ranks findings into a verdict: healthy, sick or inconclusive."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from traindoctor.checks.base import Clear, Finding, Grade, NotJudged, Outcome, Status
from traindoctor.diagnosis.rules import EXPLAINS, consequences
from traindoctor.diagnosis.symptoms import Symptom

Verdict = Literal["healthy", "sick", "inconclusive"]

GRADES: tuple[Grade, ...] = ("exact", "experiment", "statistic", "curve")
STATUSES: tuple[Status, ...] = ("confirmed", "likely", "possible")
# These waste time or memory while the model learns; a cause that keeps it from learning is told first.
COSTS_ONLY_TIME = frozenset(
    {"input-pipeline-bound", "python-loop-per-example", "sync-every-step", "memory-leak"}
)
# How a run ends follows from how it was trained: never told before a cause inside the training.
OUTCOME_ONLY = frozenset({"overfitting", "undertrained", "greedy-repetition", "model-too-small"})
# A "healthy" rests on tests that were made: on 40 % of the causes at least. A log of losses allows three or four of
# them, a script that cannot be taped ten of 54 (no clipping, one rank, ...), a taped one of any kind 30 and more.
MIN_CLEAR_SHARE = 0.4
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
    symptoms: tuple[Symptom, ...]
    steps: int
    overhead_percent: float | None = None
    overhead_seconds: float | None = None
    """Most of it is spent on the first steps: in a short script its share is large."""
    after_seconds: float | None = None
    """Tests that were made when the script had ended."""
    notes: tuple[str, ...] = ()

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


def _place(cause: Cause) -> tuple[int, bool, bool, int, int, bool, int, float, str]:
    finding = cause.finding
    return (
        STATUSES.index(finding.status) // 2,  # a guess stands behind every finding
        not cause.is_root,
        finding.cause in OUTCOME_ONLY,
        STATUSES.index(finding.status),
        GRADES.index(finding.grade),
        finding.cause in COSTS_ONLY_TIME,
        -len(cause.consequences),
        -finding.confidence,
        finding.cause,
    )


def judge(
    outcomes: Sequence[Outcome],
    symptoms: Sequence[Symptom],
    *,
    steps: int,
    overhead_percent: float | None = None,
    overhead_seconds: float | None = None,
    after_seconds: float | None = None,
    notes: Sequence[str] = (),
    proven: Mapping[str, int] | None = None,
    unmade: Sequence[str] = (),
    ended_early: str | None = None,
) -> Diagnosis:
    """The verdict over all checks' outcomes.

    `unmade`: decisive exams that there was no time for. `ended_early`: why the rest of the run was not watched.
    """
    causes = tuple(
        replace(cause, proven_step=(proven or {}).get(cause.finding.cause))
        for cause in rank(outcome for outcome in outcomes if isinstance(outcome, Finding))
    )
    cleared = tuple(outcome for outcome in outcomes if isinstance(outcome, Clear))
    open_ = tuple(outcome for outcome in outcomes if isinstance(outcome, NotJudged))
    verdict, reason = _verdict(causes, cleared, open_, symptoms, steps)
    if verdict != "sick" and ended_early:
        verdict, reason = "inconclusive", f"watching ended after {steps} steps: {ended_early}"
    elif verdict == "healthy" and unmade:
        verdict = "inconclusive"
        reason = f"there was no time for {', '.join(unmade)}; allow more with --after SECONDS"
    return Diagnosis(
        verdict,
        reason,
        causes,
        cleared,
        open_,
        tuple(symptoms),
        steps,
        overhead_percent,
        overhead_seconds,
        after_seconds,
        tuple(notes),
    )


def _verdict(
    causes: Sequence[Cause],
    cleared: Sequence[Clear],
    open_: Sequence[NotJudged],
    symptoms: Sequence[Symptom],
    steps: int,
) -> tuple[Verdict, str]:
    proven = [cause for cause in causes if cause.finding.status != "possible"]
    if proven:
        return "sick", proven[0].finding.summary
    grave = [symptom for symptom in symptoms if symptom.grave]
    if grave:
        return "inconclusive", f"{grave[0].summary}, and no test could name the reason"
    if causes and symptoms:
        return (
            "inconclusive",
            f"{symptoms[0].summary}; {causes[0].finding.cause} is possible, not proven",
        )
    if steps == 0:
        return "inconclusive", "no training step was seen"
    total = len(cleared) + len(open_)
    if len(cleared) < MIN_CLEAR_SHARE * total:
        return "inconclusive", f"only {len(cleared)} of {total} causes could be judged"
    return "healthy", f"{len(cleared)} causes are ruled out, {len(open_)} could not be judged"
