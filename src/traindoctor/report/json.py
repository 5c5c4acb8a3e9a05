"""The machine-readable verdict: what `--json FILE` writes and the page reads."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from traindoctor.checks.base import Evidence
from traindoctor.diagnosis import Cause, Diagnosis, Symptom
from traindoctor.errors import TraindoctorError

# 1: first form (2026-11): DESIGN's fields, and format, reason, not_judged, notes; per cause code, grade, line,
# proven_step, consequences, explained_by.
FORMAT = 1


def as_dict(diagnosis: Diagnosis) -> dict[str, Any]:
    """Plain data; NaN and infinity become strings, because JSON has none."""
    return {
        "format": FORMAT,
        "verdict": diagnosis.verdict,
        "reason": diagnosis.reason,
        "causes": [_cause(cause) for cause in diagnosis.causes],
        "ruled_out": [{"cause": clear.cause, "by": clear.by} for clear in diagnosis.ruled_out],
        "not_judged": [
            {"cause": left.cause, "reason": left.reason, "wants": left.wants}
            for left in diagnosis.not_judged
        ],
        "symptoms": [_symptom(symptom) for symptom in diagnosis.symptoms],
        "steps": diagnosis.steps,
        "overhead_percent": diagnosis.overhead_percent,
        "overhead_seconds": diagnosis.overhead_seconds,
        "after_seconds": diagnosis.after_seconds,
        "notes": list(diagnosis.notes),
    }


def _cause(cause: Cause) -> dict[str, Any]:
    found = cause.finding
    return {
        "cause": found.cause,
        "code": found.code,
        "status": found.status,
        "grade": found.grade,
        "confidence": found.confidence,
        "where": found.where,
        "line": found.line,
        "since_step": found.since_step,
        "proven_step": cause.proven_step,
        "summary": found.summary,
        "evidence": [_evidence(item) for item in found.evidence],
        "remedy": found.remedy,
        "consequences": list(cause.consequences),
        "explained_by": list(cause.explained_by),
    }


def _evidence(item: Evidence) -> dict[str, Any]:
    return {
        "measure": item.measure,
        "value": plain(item.value),
        "expected": plain(item.expected),
        "noise": plain(item.noise),
        "step": item.step,
    }


def _symptom(symptom: Symptom) -> dict[str, Any]:
    return {
        "symptom": symptom.name,
        "summary": symptom.summary,
        "since_step": symptom.since_step,
    }


def plain(value: Any) -> Any:
    """Numbers of any library as Python's own; what JSON cannot hold, as text."""
    if value is None or isinstance(value, str | bool):
        return value
    if isinstance(value, int):
        return int(value)
    try:
        number = float(value)
    except (TypeError, ValueError):
        return str(value)
    return number if math.isfinite(number) else str(number)


def report(diagnosis: Diagnosis, **more: Any) -> str:
    """`more`: fields that only one command has."""
    return json.dumps({**as_dict(diagnosis), **more}, indent=1, ensure_ascii=False) + "\n"


def write(diagnosis: Diagnosis, path: Path | str, **more: Any) -> None:
    """Writes the file whole or not at all; `-` is standard output."""
    if str(path) == "-":
        print(report(diagnosis, **more), end="")
        return
    target = Path(path)
    part = target.with_name(target.name + ".part")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        part.write_text(report(diagnosis, **more), encoding="utf-8")
        part.replace(target)
    except OSError as error:
        raise TraindoctorError(f"cannot write the verdict to {path}: {error}") from error
