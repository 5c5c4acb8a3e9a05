"""The table of `traindoctor check`: exam, what was measured, expected, noise, verdict."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from traindoctor.checks.base import Finding
from traindoctor.diagnosis import Diagnosis
from traindoctor.report.words import number

HEAD = ("exam", "cause", "measured", "expected", "noise", "verdict")


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
        return (self.exam, self.cause, self.measured, self.expected, self.noise, self.verdict)


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
    """A plain table; the column of what was measured takes what width is left."""
    rows = [HEAD, *(line.cells for line in lines(diagnosis, exam_of))]
    sizes = [max(len(row[column]) for row in rows) for column in range(len(HEAD))]
    others = sum(size + 2 for column, size in enumerate(sizes) if column != 2)
    sizes[2] = max(16, min(sizes[2], width - others))
    text = []
    for row in rows:
        cells = [_fit(cell, size) for cell, size in zip(row, sizes)]
        text.append("  ".join(cells).rstrip())
    return "\n".join(text) + "\n"


def _fit(cell: str, size: int) -> str:
    flat = " ".join(cell.split())
    return f"{flat if len(flat) <= size else flat[: size - 1] + '…':<{size}}"
