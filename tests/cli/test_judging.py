"""causes, explain, diagnose and the generated pages."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from traindoctor.checks import CHECKS
from traindoctor.cli import cli, docs
from traindoctor.errors import TraindoctorError
from traindoctor.record import ExamResult, RecordWriter

ROOT = Path(__file__).parents[2]


def call(*arguments: str) -> Result:
    return CliRunner().invoke(cli, list(arguments), standalone_mode=False)


def test_causes_lists_every_cause() -> None:
    output = call("causes").output
    for check in CHECKS:
        assert f"{check.slug} " in output
        assert check.code in output


def test_causes_as_json() -> None:
    rows = json.loads(call("causes", "--json").output)
    assert [row["cause"] for row in rows] == [check.slug for check in CHECKS]


@pytest.mark.parametrize("name", ["missing-zero-grad", "MISSING_ZERO_GRAD"])
def test_explain_prints_the_page(name: str) -> None:
    output = call("explain", name).output
    assert output.startswith("# missing-zero-grad (GRD")
    assert "## How to fix" in output
    assert "gradients-exploding" in output.partition("## What it explains")[2]


def test_pages_are_written_and_old_ones_removed(tmp_path: Path) -> None:
    (tmp_path / "gone.md").write_text("old")
    docs.write(tmp_path, ROOT / "examples" / "causes")
    assert {file.stem for file in tmp_path.iterdir()} == {c.slug for c in CHECKS} | {"index"}


def test_the_committed_pages_are_those_of_the_docstrings() -> None:
    folder = ROOT / "docs" / "checks"
    for name, text in docs.pages(ROOT / "examples" / "causes").items():
        assert (folder / name).read_text(encoding="utf-8") == text, f"run `make docs` for {name}"


def run_folder(folder: Path, *, sick: bool) -> Path:
    writer = RecordWriter(folder)
    for step in range(40):
        loss = math.nan if sick and step > 20 else 4.0 - step / 40
        writer.scalars(step, {"loss.root": loss, "optim.lr": 1e-3})
    writer.exam(ExamResult("shift", 0, "refused", {}, "no tape"))
    writer.fact("run.steps", 40)
    writer.close()
    return folder


def test_diagnose_says_inconclusive_by_its_status(tmp_path: Path) -> None:
    target = tmp_path / "verdict.json"
    result = call("diagnose", "--json", str(target), str(run_folder(tmp_path / "run", sick=True)))
    said = json.loads(target.read_text())
    assert result.return_value == {"healthy": 0, "sick": 1, "inconclusive": 3}[said["verdict"]]
    assert said["verdict"] != "healthy"
    assert any(symptom["symptom"] == "loss-not-finite" for symptom in said["symptoms"])
    assert "the loss is NaN or infinite from step 21 on" in " ".join(result.output.split())


def test_json_on_standard_output_is_all_there_is(tmp_path: Path) -> None:
    output = call("diagnose", "--json", "-", str(run_folder(tmp_path / "r", sick=False))).output
    assert json.loads(output)["steps"] == 40


def test_a_wrong_path_is_said_in_a_sentence(tmp_path: Path) -> None:
    result = call("diagnose", str(tmp_path / "nothing"))
    assert "there is nothing at" in str(result.exception)


@pytest.mark.parametrize("name", ["x.xyz", "x", "x.html.gz"])
def test_a_report_has_a_known_ending_or_a_format(tmp_path: Path, name: str) -> None:
    writer = RecordWriter(tmp_path / "run")
    writer.scalar("loss.root", 0, 1.0)
    writer.close()
    wanted = tmp_path / name
    refused = call("report", str(tmp_path / "run"), "-o", str(wanted))
    assert isinstance(refused.exception, TraindoctorError)
    assert "*.html, *.md or *.json" in str(refused.exception)
    assert not wanted.exists()
    assert call("report", str(tmp_path / "run"), "-o", str(wanted), "--format", "md").exit_code == 0
    assert wanted.read_text().startswith("#")
