"""`import`, `diagnose` and `report` on 300 spoilt logs."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from fuzz.import_variants import BASES, NUMBER, variants
from fuzz.outcome import fault_of

PARTS = 6
ALL = list(variants())


def test_there_are_enough_of_them() -> None:
    assert len(ALL) == NUMBER
    assert len({name for name, _ in ALL}) == NUMBER


@pytest.mark.parametrize("part", range(PARTS))
def test_no_traceback_and_no_hang(tmp_path: Path, part: int) -> None:
    faults = {}
    for number in range(part, NUMBER, PARTS):
        name, make = ALL[number]
        folder = tmp_path / str(number)
        folder.mkdir()
        source = make(folder)
        others = (("diagnose", source), ("report", source, "-o", tmp_path / "report.html"))
        found = [
            fault_of("import", source, "-o", tmp_path / f"run-{number}"),
            fault_of(*others[number // PARTS % 2]),
        ]
        if any(found):
            faults[name] = found
        shutil.rmtree(folder)
    assert faults == {}
    assert not list(tmp_path.rglob("EXECUTED"))


@pytest.mark.parametrize("name", BASES)
def test_a_good_log_is_read(tmp_path: Path, name: str) -> None:
    from traindoctor.record import open_record

    (tmp_path / name).write_text(BASES[name])
    assert fault_of("import", tmp_path / name, "-o", tmp_path / "run") is None
    assert open_record(tmp_path / "run").num_steps == 30
