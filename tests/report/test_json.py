"""The JSON verdict has DESIGN's fields, is valid JSON whatever the numbers, and is written whole."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

from traindoctor.checks.base import Clear, Evidence, Finding, NotJudged
from traindoctor.diagnosis import judge
from traindoctor.errors import TraindoctorError
from traindoctor.report import json as report

FOUND = Finding(
    "nan-from-op", "NUM004", "exact", "confirmed", 1.0, "0/0", (Evidence("divisor", 0.0, None, None, 4),
    Evidence("loss", math.nan), Evidence("peak", np.float32(2.5), math.inf)), "add eps", "norm", 4, "a.py:3",
)  # fmt: skip


def test_fields_of_the_design() -> None:
    diagnosis = judge([FOUND, Clear("a", "b"), NotJudged("c", "d", "e")], [], steps=7)
    data = json.loads(report.report(diagnosis))
    assert {"verdict", "causes", "ruled_out", "symptoms", "steps", "overhead_percent"} <= set(data)
    (cause,) = data["causes"]
    assert {
        "cause", "status", "confidence", "where", "since_step", "summary", "evidence", "remedy",
        "line", "consequences",
    } <= set(cause)  # fmt: skip
    assert set(cause["evidence"][0]) == {"measure", "value", "expected", "noise", "step"}
    assert data["format"] == report.FORMAT
    assert data["ruled_out"] == [{"cause": "a", "by": "b"}]
    assert data["not_judged"] == [{"cause": "c", "reason": "d", "wants": "e"}]


def test_what_json_cannot_hold_becomes_text() -> None:
    text = report.report(judge([FOUND], [], steps=7))
    values = [item["value"] for item in json.loads(text)["causes"][0]["evidence"]]
    assert values == [0.0, "nan", 2.5]
    assert "NaN" not in text
    assert "Infinity" not in text


def test_the_file_is_written_whole(tmp_path: Path) -> None:
    target = tmp_path / "deep" / "verdict.json"
    report.write(judge([FOUND], [], steps=7), target)
    assert json.loads(target.read_text())["verdict"] == "sick"
    assert list(target.parent.iterdir()) == [target]


def test_an_impossible_path_is_said_in_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(TraindoctorError, match="cannot write the verdict"):
        report.write(judge([FOUND], [], steps=7), tmp_path / "file" / "verdict.json")
