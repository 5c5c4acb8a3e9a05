"""An attached run is the same run: losses, weights, random states, files, exit status and streams of real programs."""

from __future__ import annotations

import importlib.util
import subprocess
from pathlib import Path

import pytest
from rows import ROWS, Row
from same_run import PROGRAMS, Ended, differences, without_ours

from warm_python import shared

CPU_ROWS = [row for row in ROWS if row.cpu]


def listed(rows: list[Row], *, all_slow: bool = False) -> list[object]:
    return [
        pytest.param(row, id=row.name, marks=[pytest.mark.slow] if row.slow or all_slow else [])
        for row in rows
    ]


@pytest.mark.parametrize("row", listed([row for row in CPU_ROWS if not row.warm]))
def test_attached_run_is_the_same(row: Row, tmp_path: Path) -> None:
    for package in row.needs:
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed")
    found = differences(row, tmp_path)
    assert not found, "\n".join([row.name, *found])


@pytest.mark.parametrize("row", listed([row for row in CPU_ROWS if row.warm]))
def test_attached_run_is_the_same_where_torch_is_already_imported(row: Row, tmp_path: Path) -> None:
    def start(
        arguments: list[str], folder: Path, env: dict[str, str], stdin: bytes, seconds: float
    ) -> Ended:
        try:
            made = shared().run(arguments, folder=folder, env=env, stdin=stdin, timeout=seconds)
        except subprocess.TimeoutExpired as late:
            return None, late.stdout or b"", late.stderr or b""
        return made.returncode, made.stdout, made.stderr

    found = differences(row, tmp_path, warm=start)
    assert not found, "\n".join([row.name, *found])


@pytest.mark.parametrize("row", listed([row for row in CPU_ROWS if row.warm], all_slow=True))
def test_and_where_the_program_imports_it(row: Row, tmp_path: Path) -> None:
    found = differences(row, tmp_path)
    assert not found, "\n".join([row.name, *found])


def test_every_program_has_a_row() -> None:
    files = {str(f.relative_to(PROGRAMS).with_suffix("")) for f in PROGRAMS.rglob("*.py")}
    files = {name for name in files if not name.endswith("__init__")} - {"toy"}
    assert files == {row.program for row in ROWS}
    assert len({row.name for row in ROWS}) == len(ROWS)


def test_the_verdict_is_cut_and_nothing_else() -> None:
    script = "step 1\n  recorded in my notes\n"
    ours = "traindoctor: HEALTHY [3 steps]\n\n  not judged a\n  recorded in /x\n"
    assert without_ours(script + ours + "bye\n", loud=True) == (script + "bye\n", 1)
    assert without_ours(script + ours, loud=False) == (script + ours, 0)
    nothing = "traindoctor: INCONCLUSIVE [0 steps]\n  why        x\n  recorded   nothing\n"
    assert without_ours(nothing + script, loud=True) == (script, 1)
