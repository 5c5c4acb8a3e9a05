"""The table of `traindoctor check`: exam, what was measured, expected, noise, verdict."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from dataclasses import dataclass

from traindoctor.checks.base import Finding
from traindoctor.diagnosis import Diagnosis
from traindoctor.report.words import number

HEAD = ("verdict", "exam", "cause", "expected", "noise", "what was measured")


@dataclass(frozen=True)
class Line:
    exam: str
    cause: str
    measured: str
    expected: str
    noise: str
    verdict: str

    @property
    def cells(self) -> tuple[str, ...]:
        return (self.verdict, self.exam, self.cause, self.expected, self.noise, self.measured)


def lines(diagnosis: Diagnosis, exam_of: Mapping[str, str]) -> list[Line]:
    """Findings first, then what is ruled out, then what an exam could not decide."""
    made = [_found(cause.finding, exam_of) for cause in diagnosis.causes]
    made += [
        Line(exam_of.get(clear.cause, "record"), clear.cause, clear.by, "-", "-", "ok")
        for clear in diagnosis.ruled_out
    ]
    made += [
        Line(exam_of[left.cause], left.cause, left.reason, "-", "-", "not judged")
        for left in diagnosis.not_judged
        if left.cause in exam_of
    ]
    return made


def _found(found: Finding, exam_of: Mapping[str, str]) -> Line:
    exam = exam_of.get(found.cause, "record")
    if not found.evidence:
        return Line(exam, found.cause, found.summary, "-", "-", found.status.upper())
    best = found.evidence[0]
    return Line(
        exam,
        found.cause,
        f"{best.measure}: {number(best.value)}",
        number(best.expected),
        number(best.noise),
        found.status.upper(),
    )


def report(diagnosis: Diagnosis, exam_of: Mapping[str, str], *, width: int = 100) -> str:
    """A plain table; what was measured stands last and is wrapped into what width is left."""
    rows = [HEAD, *(line.cells for line in lines(diagnosis, exam_of))]
    sizes = [max(len(row[column]) for row in rows) for column in range(len(HEAD) - 1)]
    margin = sum(sizes) + 2 * len(sizes)
    text = []
    for *cells, measured in rows:
        lead = "  ".join(f"{cell:<{size}}" for cell, size in zip(cells, sizes))
        wrapped = textwrap.wrap(" ".join(measured.split()), max(24, width - margin)) or [""]
        text.append(f"{lead}  {wrapped[0]}".rstrip())
        text += [" " * margin + more for more in wrapped[1:]]
    return "\n".join(text) + "\n"
