"""The JSON verdict has DESIGN's fields, is valid JSON whatever the numbers, and is written whole."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import jsonschema
import numpy as np
import pytest

import made_verdicts as sample
from traindoctor.checks import laws
from traindoctor.checks.base import Clear, Evidence, Finding, NotApplicable, NotJudged
from traindoctor.diagnosis import Diagnosis, Run, judge
from traindoctor.errors import TraindoctorError
from traindoctor.report import json as report

FOUND = Finding(
    "nan-from-op", "NUM004", "exact", "confirmed", 1.0, "0/0", (Evidence("divisor", 0.0, None, None, 4),
    Evidence("loss", math.nan), Evidence("peak", np.float32(2.5), math.inf)), "add eps", "norm", 4, "a.py:3",
    law=laws.MAKER,
)  # fmt: skip


OUTCOMES = [
    FOUND,
    Clear("a", "b"),
    NotJudged("c", "d", "e"),
    NotApplicable("f", "g"),
    replace(FOUND, cause="memory-leak"),
]
SCHEMA = json.loads(report.SCHEMA.read_text(encoding="utf-8"))


def test_fields_of_the_design() -> None:
    diagnosis = judge(OUTCOMES, Run(steps=7, unmade=("e",), command="traindoctor run x.py"))
    data = json.loads(report.report(diagnosis))
    jsonschema.validate(data, SCHEMA)
    (cause,) = data["causes"]
    assert (cause["proof"], cause["law"]) == (
        "law",
        "every operation gives finite results for the inputs it gets",
    )
    assert data["ruled_out"] == [{"cause": "a", "by": "b"}]
    command = "traindoctor run --after 120 x.py"
    assert data["untested"] == [
        {"cause": "c", "reason": "no-time", "sentence": "d", "command": command}
    ]
    assert data["not_applicable"] == [{"cause": "f", "sentence": "g"}]
    assert [one["cause"] for one in data["advice"]] == ["memory-leak"]
    assert data["coverage"] == {"applicable": 3, "passed": 1, "measured_steps": None}


@pytest.mark.parametrize(
    "made", [sample.sick(), sample.healthy(), sample.inconclusive(), judge([], Run(steps=0))]
)
def test_every_verdict_is_as_the_schema_says(made: Diagnosis) -> None:
    jsonschema.validate(json.loads(report.report(made)), SCHEMA)


def test_the_schema_forbids_what_is_no_verdict() -> None:
    data = json.loads(report.report(sample.sick()))
    for change in ({"verdict": "fine"}, {"format": 1}, {"coverage": {}}, {"untested": [{}]}):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(data | change, SCHEMA)


def test_another_format_is_refused_in_a_sentence() -> None:
    assert report.read(report.report(sample.sick()))["verdict"] == "sick"
    with pytest.raises(TraindoctorError, match=r"old\.json has format 1, this version reads 2"):
        report.read('{"format": 1, "verdict": "sick"}', "old.json")
    with pytest.raises(TraindoctorError, match="is not JSON"):
        report.read("{")


def test_what_json_cannot_hold_becomes_text() -> None:
    text = report.report(judge([FOUND], Run(steps=7)))
    values = [item["value"] for item in json.loads(text)["causes"][0]["evidence"]]
    assert values == [0.0, "nan", 2.5]
    assert "NaN" not in text
    assert "Infinity" not in text


def test_the_file_is_written_whole(tmp_path: Path) -> None:
    target = tmp_path / "deep" / "verdict.json"
    report.write(judge([FOUND], Run(steps=7)), target)
    assert json.loads(target.read_text())["verdict"] == "sick"
    assert list(target.parent.iterdir()) == [target]


def test_an_impossible_path_is_said_in_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(TraindoctorError, match="cannot write the verdict"):
        report.write(judge([FOUND], Run(steps=7)), tmp_path / "file" / "verdict.json")
