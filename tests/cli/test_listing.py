"""causes, runs and precision fit the window they are printed in."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from traindoctor.checks import CHECKS
from traindoctor.cli import cli
from traindoctor.cli.runs import how_it_ended, table

LONG = ("runs/" + "a" * 70, "2026-11-18 22:58", "150", "1.199", "ok", "sick backward-incorrect")
SHORT = ("runs/b", "2026-11-18 22:55", "300", "0.004864", "RuntimeError", "healthy")


@pytest.mark.parametrize("width", [60, 80])
def test_causes_fit(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    output = CliRunner().invoke(cli, ["causes"]).output
    assert max(map(len, output.splitlines())) <= width
    words = " ".join(output.split())
    for check in CHECKS:
        assert check.title in words


@pytest.mark.parametrize("width", [60, 80, 100])
def test_a_long_name_stands_whole_on_a_line_of_its_own(width: int) -> None:
    lines = table([LONG, SHORT], width)
    assert LONG[0] in lines
    assert all(len(line) <= width for line in lines if line not in (LONG[0],))
    text = " ".join(" ".join(lines).split())
    assert "sick backward-incorrect" in text
    assert "RuntimeError" in text


def test_short_names_share_the_line() -> None:
    head, line = table([SHORT], 80)
    assert head.split()[0] == "run"
    assert line.split() == " ".join(SHORT).split()


def test_how_a_run_ended() -> None:
    assert how_it_ended(0) == "ok"
    assert how_it_ended(3) == "status 3"
    assert how_it_ended("RuntimeError") == "RuntimeError"
    assert how_it_ended(None) == "running or killed"


@pytest.mark.parametrize("width", [60, 80])
def test_precision_fits(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    output = CliRunner().invoke(cli, ["precision", "--size", "34"]).output
    assert max(len(line.rstrip()) for line in output.splitlines()) <= width
    assert "…" not in output
