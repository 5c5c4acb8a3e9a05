"""The machine-readable verdict: what `--json FILE` writes and the page reads."""

import json
import math
from pathlib import Path
from typing import IO, Any

from traindoctor.checks.base import Evidence, Finding, NotJudged
from traindoctor.diagnosis import Cause, Diagnosis, Symptom, more_time
from traindoctor.errors import TraindoctorError

# 1 (2026-11): first form. 2 (2026-11): `untested` for `not_judged`, with a code, a sentence and a command; what does not
# apply and what is only slow apart from the causes; coverage; the kind of proof. Since 0.2 `fix` is filled in where the
# change is mechanical, and `verified` joined. Described by verdict.schema.json.
FORMAT = 2
SCHEMA = Path(__file__).with_name("verdict.schema.json")


def as_dict(diagnosis: Diagnosis) -> dict[str, Any]:
    """Plain data; NaN and infinity become strings, because JSON has none."""
    return {
        "format": FORMAT,
        "verdict": diagnosis.verdict,
        "reason": diagnosis.reason,
        "decides": diagnosis.decides,
        "causes": [_cause(cause) for cause in diagnosis.causes],
        "ruled_out": [{"cause": clear.cause, "by": clear.by} for clear in diagnosis.ruled_out],
        "untested": [_untested(left, diagnosis) for left in diagnosis.not_judged],
        "not_applicable": [
            {"cause": one.cause, "sentence": one.reason} for one in diagnosis.not_applicable
        ],
        "advice": [_finding(found) for found in diagnosis.advice],
        "symptoms": [_symptom(symptom) for symptom in diagnosis.symptoms],
        "coverage": {
            "applicable": diagnosis.applicable,
            "passed": diagnosis.passed,
            "measured_steps": diagnosis.measured,
        },
        "notes": list(diagnosis.notes),
        "steps": diagnosis.steps,
        "overhead_percent": diagnosis.overhead_percent,
        "overhead_seconds": diagnosis.overhead_seconds,
        "after_seconds": diagnosis.after_seconds,
        "reproduce": diagnosis.reproduce,
        "verified": None if diagnosis.verified is None else dict(diagnosis.verified),
    }


def read(text: str, source: str = "the verdict") -> dict[str, Any]:
    """A verdict that was written as JSON, in the form of today."""
    try:
        data = json.loads(text)
    except ValueError as error:
        raise TraindoctorError(f"{source} is not JSON: {error}") from error
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        found = data.get("format") if isinstance(data, dict) else None
        raise TraindoctorError(
            f"{source} has format {found}, this version reads {FORMAT}: "
            "judge the run again with `traindoctor diagnose DIR --json FILE`"
        )
    return data


def _cause(cause: Cause) -> dict[str, Any]:
    return {
        **_finding(cause.finding),
        "fix": cause.fix,
        "proven_step": cause.proven_step,
        "consequences": list(cause.consequences),
        "explained_by": list(cause.explained_by),
    }


def _finding(found: Finding) -> dict[str, Any]:
    return {
        "cause": found.cause,
        "code": found.code,
        "status": found.status,
        "proof": found.proof,
        "law": found.law,
        "undecided": found.undecided,
        "confidence": found.confidence,
        "where": found.where,
        "line": found.line,
        "since_step": found.since_step,
        "summary": found.summary,
        "evidence": [_evidence(item) for item in found.evidence],
        "remedy": found.remedy,
        "fix": None,
    }


def _untested(left: NotJudged, diagnosis: Diagnosis) -> dict[str, Any]:
    command = more_time(diagnosis.reproduce) if left.why == "no-time" else None
    return {"cause": left.cause, "reason": left.why, "sentence": left.reason, "command": command}


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


def write(diagnosis: Diagnosis, target: Path | str | IO[str], **more: Any) -> None:
    """Writes the file whole or not at all; `-` is standard output, and an open stream is written to."""
    if not isinstance(target, Path | str):
        target.write(report(diagnosis, **more))
        target.flush()
        return
    if str(target) == "-":
        print(report(diagnosis, **more), end="")
        return
    path, target = target, Path(target)
    part = target.with_name(target.name + ".part")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        part.write_text(report(diagnosis, **more), encoding="utf-8")
        part.replace(target)
    except OSError as error:
        raise TraindoctorError(f"cannot write the verdict to {path}: {error}") from error
