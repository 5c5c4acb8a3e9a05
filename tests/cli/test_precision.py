"""traindoctor precision: table, JSON and plot say the same."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from traindoctor.cli.precision import command
from traindoctor.errors import TraindoctorError


def run(*arguments: str) -> str:
    result = CliRunner().invoke(command, ["--size", "34", *arguments], catch_exceptions=False)
    assert result.exit_code == 0
    return result.output


def test_the_table_names_every_dtype_and_settles_the_quarrel() -> None:
    text = run()
    for word in ("float32", "bfloat16", "float16", "outliers", "compensated"):
        assert word in text
    assert "changes nothing" in text
    assert "of a right gradient fail" in text


def test_json_holds_all_measurements(tmp_path: Path) -> None:
    file = tmp_path / "precision.json"
    run("--json", str(file))
    found = json.loads(file.read_text())
    assert len(found["measurements"]) == 4 * 3 * 3
    assert {c["dtype"] for c in found["conclusions"]} == {"float32", "bfloat16", "float16"}
    assert len(found["finite_differences"]) == 18


def test_json_on_standard_output_is_alone_there() -> None:
    assert json.loads(run("--json", "-"))["measurements"]


@pytest.mark.parametrize(("name", "start"), [("p.png", b"\x89PNG"), ("p.html", b"<!doctype html>")])
def test_plot(tmp_path: Path, name: str, start: bytes) -> None:
    pytest.importorskip("matplotlib")
    run("--plot", str(tmp_path / name))
    assert (tmp_path / name).read_bytes().startswith(start)


def test_a_plot_of_an_unknown_kind_is_refused_before_measuring() -> None:
    with pytest.raises(TraindoctorError, match=r"not plot\.gif"):
        CliRunner().invoke(command, ["--plot", "plot.gif"], catch_exceptions=False)
