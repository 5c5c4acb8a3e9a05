"""Everything that was recorded, as a table: rank, step, series, layer, value. CSV or Parquet.

One long table for all: `layer` is empty for numbers of the whole step. Facts, exams and notes lie beside it
in a JSON file of the same name.
"""

import csv
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import numpy as np
from numpy.typing import NDArray

from traindoctor.errors import RecordError
from traindoctor.record.schema import Record
from traindoctor.record.stored_ranks import open_record
from traindoctor.record.writer import to_json

COLUMNS = ("rank", "step", "series", "layer", "value")

# One series of one rank: (rank, series, layer, steps, values).
Block = tuple[int, str, str, NDArray[np.int64], NDArray[np.float64]]


def export_record(run: Path | str, path: Path, form: str) -> Path:
    """The run's numbers as `form` ("csv" or "parquet") at `path`."""
    writers = {"csv": export_csv, "parquet": export_parquet}
    if form not in writers:
        raise RecordError(f"a record is exported as csv or parquet, not as {form!r}")
    if not path.parent.is_dir():
        raise RecordError(f"there is no folder {path.parent} to write {path.name} in")
    return writers[form](open_record(run), path)


def blocks(record: Record) -> Iterator[Block]:
    """All numbers of all ranks, one series at a time: a long run is never in memory as a whole."""
    for number, one in enumerate(record.ranks):
        rank = int(one.meta.get("rank", number))
        for name in one.names:
            series = one[name]
            yield rank, name, "", series.steps, series.values
        for name in one.layer_names:
            table = one.layers(name)
            if table is None:
                continue
            for column, layer in enumerate(table.layers):
                yield rank, name, layer, table.steps, table.values[:, column].astype(np.float64)


def export_csv(record: Record, path: Path) -> Path:
    """NaN is written as nan, infinities as inf: a gap in the table is a number that was not a number."""
    with _opened(path) as file:
        writer = csv.writer(file)
        writer.writerow(COLUMNS)
        for rank, name, layer, steps, values in blocks(record):
            writer.writerows(
                (rank, step, name, layer, repr(value))
                for step, value in zip(steps.tolist(), values.tolist())
            )
    _beside(record, path)
    return path


def export_parquet(record: Record, path: Path) -> Path:
    """Series and layer names as dictionaries: the file is about as large as the record."""
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError:
        raise RecordError(
            "Parquet needs pyarrow: pip install 'traindoctor[parquet]', or export as csv"
        ) from None
    word = pa.dictionary(pa.int32(), pa.string())
    schema = pa.schema(
        [
            ("rank", pa.int32()),
            ("step", pa.int64()),
            ("series", word),
            ("layer", word),
            ("value", pa.float64()),
        ]
    )
    try:
        with pq.ParquetWriter(path, schema) as writer:
            for rank, name, layer, steps, values in blocks(record):
                count = len(steps)
                same = pa.array(np.zeros(count, dtype=np.int32))
                writer.write_table(
                    pa.table(
                        [
                            pa.array(np.full(count, rank, dtype=np.int32)),
                            pa.array(steps),
                            pa.DictionaryArray.from_arrays(same, pa.array([name])),
                            pa.DictionaryArray.from_arrays(same, pa.array([layer])),
                            pa.array(values),
                        ],
                        schema=schema,
                    )
                )
    except OSError as error:
        raise RecordError(f"cannot write {path}: {error}") from error
    _beside(record, path)
    return path


def _beside(record: Record, path: Path) -> None:
    told = [
        {
            "rank": int(one.meta.get("rank", number)),
            "meta": one.meta,
            "facts": one.facts,
            "exams": [vars(result) for result in one.exam_results],
            "notes": [vars(note) for note in one.notes],
        }
        for number, one in enumerate(record.ranks)
    ]
    with _opened(path.with_suffix(".facts.json")) as file:
        file.write(to_json(told))


def _opened(path: Path) -> IO[str]:
    try:
        return path.open("w", newline="", encoding="utf-8")
    except OSError as error:
        raise RecordError(f"cannot write {path}: {error.strerror}; choose another -o") from error
