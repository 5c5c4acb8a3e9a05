"""What people do next: commands to copy."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

import made_verdicts as sample
from traindoctor.report import next_steps
from traindoctor.report.terminal import INDENT, command_lines


def test_a_sick_run_is_explained_shown_and_compared_with_the_last_one(tmp_path: Path) -> None:
    run, earlier = tmp_path / "new", tmp_path / "old"
    run.mkdir()
    (run / "record-0.sqlite").touch()
    commands = next_steps.next_steps(sample.sick(), run, earlier=earlier)
    assert commands == (
        "traindoctor explain causal-mask-leak",
        f"traindoctor ui {next_steps.shown(run)}",
        f"traindoctor report {next_steps.shown(run)}",
        f"traindoctor compare {next_steps.shown(earlier)} {next_steps.shown(run)}",
    )


def test_a_healthy_run_has_no_cause_to_explain_and_a_log_no_page(tmp_path: Path) -> None:
    log = tmp_path / "metrics.csv"
    log.write_text("step,loss\n")
    for source in (log, tmp_path):
        more = ("traindoctor import x",)
        commands = next_steps.next_steps(sample.healthy(), source, more=more)
        assert [one.split()[1] for one in commands] == ["report", "import"]
    assert next_steps.text((), 80) == ""


@pytest.mark.parametrize("width", [40, 60, 80])
def test_a_long_command_can_be_copied_from_a_narrow_window(width: int) -> None:
    command = shlex.join(
        ["traindoctor", "run", "--after", "120", "my train.py", "--text", "it's on", "--lr", "0.1"]
    )
    lines = command_lines(command, width, INDENT)
    assert all(len(line) <= width for line in lines)
    assert len(lines) > 1 or width == 80
    pasted = "\n".join(lines).replace("\\\n", " ")  # as a shell reads it
    assert shlex.split(pasted) == shlex.split(command)


def test_only_the_first_line_is_labelled(tmp_path: Path) -> None:
    said = next_steps.text(("traindoctor explain x", "traindoctor ui y"), 80)
    assert said == "  next       traindoctor explain x\n             traindoctor ui y\n"
