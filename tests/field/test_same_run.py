"""An attached run is the same run: losses, weights, random states, files, exit status and streams of real programs."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
from rows import ROWS, Row
from same_run import PROGRAMS, differences, without_ours

CPU_ROWS = [
    pytest.param(row, id=row.name, marks=[pytest.mark.slow] if row.slow else [])
    for row in ROWS
    if row.cpu
]


@pytest.mark.parametrize("row", CPU_ROWS)
def test_attached_run_is_the_same(row: Row, tmp_path: Path) -> None:
    for package in row.needs:
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed")
    found = differences(row, tmp_path)
    assert not found, "\n".join([row.name, *found])


def test_every_program_has_a_row() -> None:
    files = {str(f.relative_to(PROGRAMS).with_suffix("")) for f in PROGRAMS.rglob("*.py")}
    files = {name for name in files if not name.endswith("__init__")} - {"toy"}
    assert files == {row.program for row in ROWS}
    assert len({row.name for row in ROWS}) == len(ROWS)


def test_the_verdict_is_cut_and_nothing_else() -> None:
    script = "step 1\n  recorded in my notes\n"
    ours = "traindoctor: HEALTHY [3 steps]: fine\n\n  not judged a\n  recorded in /x\n"
    assert without_ours(script + ours + "bye\n", loud=True) == (script + "bye\n", 1)
    assert without_ours(script + ours, loud=False) == (script + ours, 0)
    nothing = "traindoctor: INCONCLUSIVE [0 steps]: no step: nothing was trained\n"
    assert without_ours(nothing + script, loud=True) == (script, 1)
