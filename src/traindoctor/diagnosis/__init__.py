"""From outcomes of checks to a verdict."""

from traindoctor.diagnosis.engine import (
    Wanted,
    diagnose,
    examine,
    explain,
    find_check,
    overhead_percent,
    wanted,
)
from traindoctor.diagnosis.rules import EXPLAINS, consequences
from traindoctor.diagnosis.symptoms import Symptom, symptoms
from traindoctor.diagnosis.verdict import (
    Cause,
    Diagnosis,
    Run,
    Verdict,
    explains,
    judge,
    more_time,
    rank,
)

__all__ = [
    "EXPLAINS",
    "Cause",
    "Diagnosis",
    "Run",
    "Symptom",
    "Verdict",
    "Wanted",
    "consequences",
    "diagnose",
    "examine",
    "explain",
    "explains",
    "find_check",
    "judge",
    "more_time",
    "overhead_percent",
    "rank",
    "symptoms",
    "wanted",
]
