"""The report: one file, nothing from outside, nothing that a run wrote is ever executed."""

from __future__ import annotations

import html
import json
import re

import numpy as np
import pytest
from click.testing import CliRunner

from made_runs import make_run, sick_verdict
from traindoctor.cli.report import command
from traindoctor.errors import TraindoctorError
from traindoctor.record import RecordWriter, make_record, open_record
from traindoctor.report import html as html_report
from traindoctor.report.plots import write_plots

BLOCK = re.compile(r'<script type="application/json" id="traindoctor-data">(.*?)</script>', re.S)


def data_of(text: str) -> dict:
    (block,) = BLOCK.findall(text)
    return json.loads(block)


def test_the_numbers_are_inside(tmp_path) -> None:
    record = open_record(make_run(tmp_path / "run", steps=50))
    data = data_of(html_report.report(record, sick_verdict(50), name="run"))
    assert data["run"]["verdict"]["verdict"] == "sick"
    assert len(data["series"]["loss.token"]["steps"]) == 50
    assert set(data["layers"]) >= {"grad.rms", "update.ratio", "act.rms", "adam.snr"}


def test_a_hostile_run_stays_text(tmp_path) -> None:
    hostile = '</script><script>alert("x")</script>'
    writer = RecordWriter(tmp_path / "run")
    writer.scalar("loss.root", 0, 1.0)
    writer.layers("grad.rms", 0, [hostile], [1.0])
    writer.fact("script", {"path": hostile})
    writer.close()
    text = html_report.report(open_record(tmp_path / "run"), None, name=hostile)
    assert hostile not in text
    data = data_of(text)
    assert data["run"]["name"] == hostile
    assert data["layers"]["grad.rms"]["layers"] == [hostile]


def test_only_its_own_script_may_run(tmp_path) -> None:
    text = html_report.report(make_record({"loss.root": [1.0]}), None, name="run")
    (policy,) = re.findall(r'http-equiv="Content-Security-Policy" content="([^"]*)"', text)
    policy = html.unescape(policy)
    assert "default-src 'none'" in policy
    assert "connect-src 'none'" in policy
    assert "unsafe" not in policy
    assert re.search(r"script-src 'sha256-[A-Za-z0-9+/=]+';", policy)
    assert policy.index("default-src") < text.index("<script")


def test_a_notebook_shows_it_in_a_closed_frame() -> None:
    shown = html_report.notebook(make_record({"loss.root": [1.0]}), None, name='"run"')
    frame = shown._repr_html_()
    assert 'sandbox="allow-scripts"' in frame
    (source,) = re.findall(r'srcdoc="([^"]*)"', frame)
    assert html.unescape(source) == shown.text


def test_an_empty_record_has_a_report() -> None:
    data = data_of(html_report.report(make_record(), None, name="nothing"))
    assert data["run"]["steps"] == 0
    assert data["series"] == {}


def test_a_file_that_cannot_be_written_is_told(tmp_path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(TraindoctorError, match="cannot write the report"):
        html_report.write(make_record(), None, tmp_path / "file" / "r.html", name="x")


@pytest.mark.parametrize(
    ("form", "begins"), [("html", "<!doctype html>"), ("md", "# Verdict"), ("json", "{")]
)
def test_the_command_writes_each_form(tmp_path, form: str, begins: str) -> None:
    run = make_run(tmp_path / "run", steps=20)
    target = tmp_path / f"out.{form}"
    result = CliRunner().invoke(command, [str(run), "-o", str(target)], catch_exceptions=False)
    assert result.exit_code == 0
    assert target.read_text().lower().startswith(begins.lower())


def test_plots_are_png_files(tmp_path) -> None:
    written = write_plots(open_record(make_run(tmp_path / "run", steps=60)), tmp_path / "plots")
    assert {path.stem for path in written} >= {"loss", "gradient-norm", "update-ratio-by-layer"}
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in written)


def test_plots_of_a_run_that_is_all_nan(tmp_path) -> None:
    nan = float("nan")
    record = make_record({"grad.norm": [nan] * 3}, layers={"grad.rms": {"a": [nan, np.inf]}})
    assert {path.stem for path in write_plots(record, tmp_path)} == {
        "gradient-norm",
        "gradient-by-layer",
    }
