"""Everything recorded can be taken away, in one documented table."""

from __future__ import annotations

import csv
import json
import math
from pathlib import Path

import pytest

from traindoctor.errors import RecordError
from traindoctor.record import RecordWriter
from traindoctor.record.export import COLUMNS, export_record


@pytest.fixture
def run(tmp_path: Path) -> Path:
    for rank in (0, 1):
        writer = RecordWriter(tmp_path / "run", rank=rank)
        for step in range(3):
            writer.scalar("loss.root", step, step + 0.25)
        writer.layers("grad.rms", 2, ["a", "b"], [1.5, math.nan])
        writer.fact("env", {"torch": "x"})
        writer.close()
    return tmp_path / "run"


def test_csv_holds_every_number(run: Path, tmp_path: Path) -> None:
    export_record(run, tmp_path / "out.csv", "csv")
    with (tmp_path / "out.csv").open() as file:
        rows = list(csv.reader(file))
    assert tuple(rows[0]) == COLUMNS
    assert ["1", "2", "loss.root", "", "2.25"] in rows
    assert ["0", "2", "grad.rms", "a", "1.5"] in rows
    assert ["0", "2", "grad.rms", "b", "nan"] in rows
    assert len(rows) == 1 + 2 * (3 + 2)
    facts = json.loads((tmp_path / "out.facts.json").read_text())
    assert [one["facts"]["env"]["torch"] for one in facts] == ["x", "x"]


def test_parquet_holds_the_same(run: Path, tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    export_record(run, tmp_path / "out.parquet", "parquet")
    table = parquet.read_table(tmp_path / "out.parquet").to_pylist()
    assert len(table) == 10
    assert {
        "rank": 1,
        "step": 2,
        "series": "loss.root",
        "layer": "",
        "value": 2.25,
    } in table


def test_wrong_places_are_told(run: Path, tmp_path: Path) -> None:
    with pytest.raises(RecordError, match="no folder"):
        export_record(run, tmp_path / "nowhere" / "out.csv", "csv")
    with pytest.raises(RecordError, match="csv or parquet"):
        export_record(run, tmp_path / "out.xls", "xls")
