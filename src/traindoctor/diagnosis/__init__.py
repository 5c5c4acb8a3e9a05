"""From outcomes of checks to a verdict."""

from traindoctor.diagnosis.engine import (
    diagnose,
    examine,
    explain,
    find_check,
    overhead_percent,
    wanted,
)
from traindoctor.diagnosis.rules import consequences
from traindoctor.diagnosis.symptoms import Symptom
from traindoctor.diagnosis.verdict import Cause, Diagnosis, Run, judge, more_time

__all__ = [
    "Cause",
    "Diagnosis",
    "Run",
    "Symptom",
    "consequences",
    "diagnose",
    "examine",
    "explain",
    "find_check",
    "judge",
    "more_time",
    "overhead_percent",
    "wanted",
]
