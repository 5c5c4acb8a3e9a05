"""The commands `ui` and `report`, as typed."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from made_runs import make_run
from traindoctor.cli.report import command as report
from traindoctor.cli.ui import command as ui
from traindoctor.dashboard import server
from traindoctor.dashboard.launch import open_browser
from traindoctor.errors import TraindoctorError


def test_a_mistyped_folder_is_told(tmp_path: Path) -> None:
    with pytest.raises(TraindoctorError, match="there is no folder"):
        CliRunner().invoke(ui, [str(tmp_path / "nothing")], catch_exceptions=False)


def test_the_address_is_printed_and_the_folder_served(tmp_path: Path, monkeypatch) -> None:
    served = []
    monkeypatch.setattr(server, "serve", lambda folder, sock, beside: served.append(folder))
    result = CliRunner().invoke(ui, [str(tmp_path), "--no-browser", "--port", "0"])
    assert result.exit_code == 0
    assert "http://127.0.0.1:" in result.output
    assert served == [tmp_path]


def test_no_text_browser_takes_over_a_terminal(monkeypatch) -> None:
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.delenv("DISPLAY", raising=False)
    monkeypatch.delenv("WAYLAND_DISPLAY", raising=False)
    assert open_browser("http://127.0.0.1:1/") is False


def test_a_report_goes_into_the_run_and_to_a_board(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", steps=20)
    arguments = [str(run), "--plots", str(tmp_path / "plots"), "--board", "tensorboard"]
    result = CliRunner().invoke(report, arguments, catch_exceptions=False)
    assert result.exit_code == 0
    assert (run / "report.html").read_text().startswith("<!doctype html>")
    assert (tmp_path / "plots" / "loss.png").exists()
    assert list((run / "tensorboard").glob("events.out.*"))


def test_markdown_and_json_go_to_standard_output(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", steps=20)
    for form, begins in (("md", "# Verdict"), ("json", "{")):
        result = CliRunner().invoke(report, [str(run), "--format", form], catch_exceptions=False)
        assert result.output.startswith(begins)
