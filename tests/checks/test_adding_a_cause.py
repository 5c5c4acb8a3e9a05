"""A new cause is one new file: a copy of the package with that file lists it, finds it and demotes what it explains."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import traindoctor

PACKAGE = Path(traindoctor.__file__).parent
FILE = '''
from __future__ import annotations

from traindoctor.checks.base import Outcome, check, evidence
from traindoctor.checks.consequences import TOO_SHORT
from traindoctor.record import Record


@check(
    code="OPT999",
    slug="tide-too-high",
    title="The tide lifts the weights off the ground",
    law="weights stay dry",
    explains=("missing-zero-grad", *TOO_SHORT),
    urgent=True,
    essential=True,
)
def tide_too_high(record: Record) -> Outcome:
    """
    ## What it does
    Reads the tide.
    ## How to fix
    Wait for six hours.
    """
    tide = record.get("sea.tide")
    if tide is None:
        return tide_too_high.not_judged("no tide was seen")
    if tide.median() < 1.0:
        return tide_too_high.clear("the tide is out")
    return tide_too_high.finding(evidence("tide, metres", tide, 0.0), grade="exact")
'''
FLOOD = {"grad.leftover_norm": [0.0] + [2.0] * 9, "sea.tide": [3.0] * 10}
DRY = FLOOD | {"sea.tide": [0.0] * 10}
JUDGE = """
import json, sys
from traindoctor.diagnosis import diagnose
from traindoctor.record import make_record
from traindoctor.report.json import report
print(report(diagnose(make_record(json.loads(sys.argv[1])))))
"""


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where a copy of the package lies to which nothing but the file is added."""
    folder = tmp_path_factory.mktemp("copy")
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(PACKAGE, folder / "traindoctor", ignore=ignored)
    (folder / "traindoctor" / "checks" / "optimizer" / "tide_too_high.py").write_text(FILE)
    return folder


def python(copy: Path, *arguments: str) -> str:
    env = os.environ | {"PYTHONPATH": str(copy)}
    command = [sys.executable, *arguments]
    return subprocess.run(
        command, env=env, cwd=copy, check=True, capture_output=True, text=True
    ).stdout


def causes(copy: Path, series: dict[str, list[float]]) -> dict[str, dict[str, object]]:
    told = json.loads(python(copy, "-c", JUDGE, json.dumps(series)))
    return {cause["cause"]: cause for cause in told["causes"]}


def test_it_is_listed_last_of_its_family(copy: Path) -> None:
    rows = json.loads(python(copy, "-m", "traindoctor", "causes", "--json"))
    family = [row["cause"] for row in rows if row["family"] == "optimizer"]
    assert family[-1] == "tide-too-high"
    assert "The tide lifts the weights" in python(copy, "-m", "traindoctor", "causes")


def test_it_has_a_page_with_what_it_explains(copy: Path) -> None:
    page = python(copy, "-m", "traindoctor", "explain", "tide-too-high")
    assert "Wait for six hours" in page
    assert "lr-too-low" in page
    # Through another: missing-zero-grad explains it.
    assert "clip-too-tight" in page


def test_its_consequences_are_demoted_where_it_is_found(copy: Path) -> None:
    found = causes(copy, FLOOD)
    assert next(iter(found)) == "tide-too-high"
    tide = found["tide-too-high"]
    assert (tide["status"], tide["law"]) == ("confirmed", "weights stay dry")
    assert tide["consequences"] == ["missing-zero-grad"]
    assert found["missing-zero-grad"]["explained_by"] == ["tide-too-high"]


def test_without_its_fault_its_consequences_stand_for_themselves(copy: Path) -> None:
    found = causes(copy, DRY)
    assert "tide-too-high" not in found
    assert found["missing-zero-grad"]["explained_by"] == []


def test_its_other_fields_are_read(copy: Path) -> None:
    code = (
        "from traindoctor.diagnosis.engine import severity\n"
        "from traindoctor.diagnosis.rules import *\n"
        "own = 'tide-too-high'\n"
        "print(own in URGENT, own in ESSENTIAL, own in OUTCOME_ONLY, own in COSTS_ONLY_TIME, own in OVER_BATCHES)\n"
        "print(severity(own) > 10)\n"
    )
    assert python(copy, "-c", code).split() == ["True", "True", "False", "False", "False", "True"]
