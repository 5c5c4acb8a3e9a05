"""The record of a log: what it says under names that are understood, and the fact `imported`."""

import csv
import itertools
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from traindoctor.errors import RecordError
from traindoctor.logs.names import OUR_TAG, Column, choose, is_step, plain, step_rank
from traindoctor.logs.tables import Row, Table, listed, read_table
from traindoctor.plain_files import is_there, read_json
from traindoctor.record.schema import Record, Series
from traindoctor.record.text import readable
from traindoctor.record.valid import FIRST_STEP, LAST_STEP
from traindoctor.record.writer import RecordWriter

# A column of steps that most rows have goes before a surer name that few have.
COVERAGE = 0.9


def read_log(source: Path | str, *, vocab_size: int | None = None) -> Record:
    """The record of a log file or folder. `vocab_size`: of the model, where the log's folder does not say it."""
    path = Path(source)
    try:
        table = read_table(path)
        series, fact = _series(path, table)
    except (OSError, ValueError, csv.Error) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise RecordError(
            f"cannot read {readable(str(path))} ({readable(str(reason))[:300]}): give a CSV or JSON log in UTF-8, or a "
            "folder of TensorBoard, MLflow or a Trainer"
        ) from error
    fact["vocab_size"] = vocab_size or _vocab_size(table.beside)
    facts = {"imported": fact, "run.ended": 0}  # nothing is added to it any more
    return Record(series=series, facts=facts)


def write_log(record: Record, folder: Path, source: Path | str) -> Path:
    """Writes the record of a log into a run folder."""
    writer = RecordWriter(folder, meta={"imported": str(source)})
    for name in record.names:
        for step, value in record[name]:
            writer.scalar(name, step, value)
    for fact, value in record.facts.items():
        writer.fact(fact, value)
    writer.close()
    return folder


def _series(path: Path, table: Table) -> tuple[dict[str, Series], dict[str, Any]]:
    names = list(dict.fromkeys(name for row in table.rows for name in row))
    numbers = {n: [_number(row.get(n)) for row in table.rows] for n in names if not is_step(n)}
    points = {name: sum(x is not None for x in values) for name, values in numbers.items()}
    columns = choose(numbers, points)
    if not any(column.series for column in columns):
        raise RecordError(_nothing_understood(path, columns))
    steps, step_name, remarks = _steps(table.rows, names)
    series: dict[str, Series] = {}
    for column in columns:
        name = column.series or f"log.{plain(column.name.removeprefix(OUR_TAG))}"
        values = numbers[column.name]
        if column.is_perplexity:
            values = [_log(value) for value in values]
        if points[column.name] and name not in series:
            series[name] = _of_points(name, steps, values)
        if column.series:
            said = _odd_cell(table.rows, column), _goes_back(column.name, steps, values)
            remarks += [remark for remark in said if remark]
    fact = {
        "from": readable(path.name),
        "rows": len(table.rows),
        "steps": readable(step_name),
        "used": {readable(c.name): c.series for c in columns if c.series},
        "ignored": {readable(c.name): readable(c.why) for c in columns if not c.series},
        "remarks": [*table.remarks, *remarks],
    }
    return series, fact


def _nothing_understood(path: Path, columns: Sequence[Column]) -> str:
    said = listed([column.name for column in columns]) or "there is none"
    empty = [column.name for column in columns if column.why == "holds no numbers"]
    why = f"; {listed(empty)} holds no numbers" if empty else ""
    return (
        f"{readable(str(path))}: no column is understood ({said}){why}; a log needs columns such as step, loss, val_loss, "
        "lr or grad_norm"
    )


def _of_points(name: str, steps: Sequence[int], values: Sequence[float | None]) -> Series:
    """In order of steps; of several numbers of one step the last counts."""
    found = {step: value for step, value in zip(steps, values) if value is not None}
    order = sorted(found)
    return Series(
        name,
        np.array(order, dtype=np.int64),
        np.array([found[step] for step in order], dtype=np.float64),
    )


def _steps(rows: Sequence[Row], names: Sequence[str]) -> tuple[list[int], str, list[str]]:
    """Step of each row, and the column that tells it; a row without one belongs to the step before."""
    known = {name: [_number(row.get(name)) for row in rows] for name in names if is_step(name)}
    filled = {n: sum(x is not None for x in v) / max(1, len(rows)) for n, v in known.items()}
    sure = [n for n in filled if filled[n] >= COVERAGE * max(filled.values())]
    name = min(sure, key=lambda n: step_rank(n) or 0, default="")
    if not name or not filled[name]:
        return list(range(len(rows))), "", ["no column of steps: rows are counted"]
    steps: list[int] = []
    for number, value in enumerate(known[name]):
        if value is None or not math.isfinite(value):
            steps.append(steps[-1] if steps else 0)
            continue
        if not FIRST_STEP <= value <= LAST_STEP:
            raise ValueError(f"row {number + 1} has step {value:g}, which is not a count")
        steps.append(int(value))
    return steps, name, []


def _goes_back(name: str, steps: Sequence[int], values: Sequence[float | None]) -> str | None:
    own = [step for step, value in zip(steps, values) if value is not None]
    back = next(((a, b) for a, b in itertools.pairwise(own) if b < a), None)
    if back is None:
        return None
    return f"steps of {readable(name)} go back from {back[0]} to {back[1]}: of one step the later number counts"


def _odd_cell(rows: Sequence[Row], column: Column) -> str | None:
    odd = [
        str(cell)
        for row in rows
        if (cell := row.get(column.name)) not in (None, "") and _number(cell) is None
    ]
    if not odd:
        return None
    return f"{len(odd)} cells of {readable(column.name)} are not numbers ({readable(odd[0])[:30]})"


def _vocab_size(folder: Path | None) -> int | None:
    """What a model's config.json beside the log says."""
    file = folder / "config.json" if folder is not None else None
    if file is None or not is_there(file):
        return None
    try:
        config = read_json(file)
    except (OSError, ValueError):
        return None
    size = config.get("vocab_size") if isinstance(config, Mapping) else None
    return size if isinstance(size, int) and not isinstance(size, bool) and size > 1 else None


def _log(value: float | None) -> float | None:
    if value is None or math.isnan(value):
        return value
    return math.log(value) if value > 0 else math.nan


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or value is None:
        return None
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return None
