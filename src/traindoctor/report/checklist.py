"""The table of `traindoctor check`: exam, what was measured, expected, noise, verdict."""

import textwrap
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from traindoctor.checks.base import Evidence, Finding
from traindoctor.diagnosis import Diagnosis
from traindoctor.diagnosis.rules import COSTS_ONLY_TIME
from traindoctor.record import ExamResult
from traindoctor.record.wording import wrapped
from traindoctor.report.json import plain
from traindoctor.report.measured import EXAMS, Measured
from traindoctor.report.words import number, proof

HEAD = ("test", "what was measured", "value", "expected", "noise", "verdict")
# The record of the steps themselves: rates, norms, times, batches.
COURSE = "the first steps"
# Where an exam measured nothing.
WORD = {"refused": "not possible", "not-applicable": "n/a", "failed": "failed"}
# What was measured is wrapped into what the other columns leave; where that is less, there are no columns.
LEAST_WIDTH = 24
# "not possible", "look at this"
LONGEST_WORD = 12


@dataclass(frozen=True)
class Line:
    """One row of the table."""

    exam: str | None
    """None: the course of the first steps."""
    measured: str
    verdict: str
    value: float | str | None = None
    expected: float | str | None = None
    noise: float | None = None

    @property
    def cells(self) -> tuple[str, ...]:
        title = COURSE if self.exam is None else title_of(self.exam)
        numbers = (number(self.value), number(self.expected), number(self.noise))
        return (title, self.measured, *numbers, self.verdict)

    def as_dict(self) -> dict[str, Any]:
        """For `--json`: the numbers as they are."""
        return {name: plain(value) for name, value in asdict(self).items()}


def lines(
    diagnosis: Diagnosis,
    asked: Mapping[str, Iterable[str]],
    exams: Iterable[ExamResult] = (),
    unmade: Iterable[str] = (),
) -> list[Line]:
    """Findings first, then what every other exam measured, then those that found no time.

    `asked`: exam -> the causes that wanted it.
    """
    exam_of = {cause: exam for exam, causes in asked.items() for cause in causes}
    made = [_found(cause.finding, exam_of) for cause in diagnosis.causes]
    made += [_found(found, exam_of) for found in diagnosis.advice]
    guilty = {exam_of.get(cause.finding.cause) for cause in diagnosis.causes}
    cleared = {clear.cause for clear in diagnosis.ruled_out}
    latest = latest_results(exams)
    for name in (*EXAMS, *(name for name in latest if name not in EXAMS)):
        if name in latest and name not in guilty:
            made.append(_quiet(latest[name], cleared.intersection(asked.get(name, ()))))
    made += [
        Line(name, "no time was left: allow more with --seconds", "no time") for name in unmade
    ]
    return made


def latest_results(exams: Iterable[ExamResult]) -> dict[str, ExamResult]:
    """Exam -> its latest result that was done; its latest refusal where none was."""
    found: dict[str, ExamResult] = {}
    for result in exams:
        if result.done or not (result.exam in found and found[result.exam].done):
            found[result.exam] = result
    return found


def _found(found: Finding, exam_of: Mapping[str, str]) -> Line:
    exam = exam_of.get(found.cause)
    word = "SLOW" if found.cause in COSTS_ONLY_TIME else found.status.upper()
    verdict = f"{word}: {found.cause}"
    if not found.evidence:
        return Line(exam, found.summary, verdict)
    best = found.evidence[0]
    return Line(exam, best.measure, verdict, best.value, best.expected, best.noise)


def _quiet(result: ExamResult, cleared: Iterable[str]) -> Line:
    """An exam that no finding rests on."""
    if not result.done:
        return Line(result.exam, result.reason, WORD[result.outcome])
    one = measured_of(result)
    if one is None:
        return Line(result.exam, "done", "ok" if any(cleared) else "-")
    # Where no check asks, the exam's own answer counts; a measurement without an answer only informs.
    fine = True if any(cleared) else one.fine
    word = "-" if fine is None else ("ok" if fine else "look at this")
    return Line(result.exam, one.text, word, one.value, one.expected, one.noise)


def title_of(exam: str) -> str:
    """What a reader calls an exam."""
    return EXAMS[exam][0] if exam in EXAMS else exam.replace("_", " ")


def measured_of(result: ExamResult) -> Measured | None:
    """The number of an exam that was done; None where nobody has said which one it is."""
    if result.exam not in EXAMS:
        return None
    try:
        return EXAMS[result.exam][1](result.values)
    except (KeyError, IndexError, TypeError, ValueError):
        return None  # a record of another version: the row stays, without its number


def report(
    diagnosis: Diagnosis,
    asked: Mapping[str, Iterable[str]],
    table: Iterable[Line],
    *,
    width: int = 100,
) -> str:
    """A plain table, and below it the causes that the course of the first steps clears."""
    table = list(table)
    rows = [HEAD, *(line.cells for line in table)]
    sizes = [max(len(row[column]) for row in rows) for column in range(len(HEAD))]
    sizes[1] = min(sizes[1], width - sum(sizes) + sizes[1] - 2 * (len(HEAD) - 1))
    if sizes[1] < LEAST_WIDTH:
        return "\n".join([*_as_list(table, width), *_course(diagnosis, asked, width)]) + "\n"
    text = []
    for row in rows:
        wrapped = textwrap.wrap(" ".join(row[1].split()), sizes[1]) or [""]
        cells = (row[0], wrapped[0], *row[2:])
        text.append("  ".join(f"{cell:<{size}}" for cell, size in zip(cells, sizes)).rstrip())
        text += [" " * (sizes[0] + 2) + more for more in wrapped[1:]]
    return "\n".join([*text, *_course(diagnosis, asked, width)]) + "\n"


def _as_list(table: Iterable[Line], width: int) -> list[str]:
    """For a narrow window: the verdict, then what was measured in a sentence."""
    made: list[str] = []
    for line in table:
        title, measured, *_, verdict = line.cells
        said = f"{title}: {measured}"
        if line.value is not None:
            said = proof(Evidence(said, line.value, line.expected, line.noise))
        word, _, cause = verdict.partition(": ")
        lead = f"{word:<{LONGEST_WORD}}  "
        text = f"{cause}; {said}" if cause else said
        made += wrapped(text, width, lead, " " * len(lead))
    return made


def _course(diagnosis: Diagnosis, asked: Mapping[str, Iterable[str]], width: int) -> list[str]:
    """The causes that the steps themselves clear, without a test of their own."""
    by_exam = {cause for causes in asked.values() for cause in causes}
    course = [clear.cause for clear in diagnosis.ruled_out if clear.cause not in by_exam]
    if not course:
        return []
    said = f"also ok in {COURSE}: {', '.join(course)}"
    return ["", *wrapped(said, width, "", "  ")]
