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
from traindoctor.diagnosis.verdict import Cause, Diagnosis, Verdict, explains, judge, rank

__all__ = [
    "EXPLAINS",
    "Cause",
    "Diagnosis",
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
    "overhead_percent",
    "rank",
    "symptoms",
    "wanted",
]
