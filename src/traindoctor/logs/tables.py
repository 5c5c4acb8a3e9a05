"""Logs of other tools as rows: CSV, JSON, JSON lines, TensorBoard, W&B, MLflow, Lightning, a Trainer's state.

Whatever a file holds, the answer is rows of one run, or one sentence that says what to do.
"""

import csv
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from traindoctor.errors import RecordError
from traindoctor.logs.names import EVAL, TRAIN, plain
from traindoctor.plain_files import is_there, parse_json, read_text, require_file
from traindoctor.record.text import readable
from traindoctor.record.wording import some_of

Row = Mapping[str, Any]

# Columns of long tables: which metric a row is about, and whose.
KEYS, RUNS = ("key", "metric", "metric_name", "series", "tag"), ("run_id", "run", "run_name")
# MLflow's files of one metric: milliseconds, value, step.
MLFLOW = re.compile(r"\d{9,} \S+( -?\d+)?")
# The band that W&B draws around a downloaded curve.
BAND = ("__MIN", "__MAX")
# Objects inside of a row ({"train": {"loss": 2}}) are opened so deep.
DEPTH = 3
# Names that a sentence lists, and how much of each.
LISTED, SHOWN = 8, 40


@dataclass(frozen=True)
class Table:
    """The rows of one run's log, and what had to be left out of them."""

    rows: Sequence[Row]
    remarks: tuple[str, ...] = ()
    beside: Path | None = None
    """The folder in which settings of the run may lie."""


def listed(names: Sequence[str]) -> str:
    return some_of([readable(name)[:SHOWN] for name in names], LISTED)


def read_table(path: Path) -> Table:
    return _of_folder(path) if path.is_dir() else _of_file(path)


def _of_file(path: Path) -> Table:
    text = read_text(path)
    if "\0" in text:
        raise ValueError("it is not text")
    if not text.strip():
        raise RecordError(f"{_said(path)} is empty: give a log with a header line and rows")
    lines = [line for line in text.splitlines() if line.strip()]
    if MLFLOW.fullmatch(lines[0]):
        table = Table(_metric_rows(path.name, lines))
    elif text.lstrip()[0] in "{[":
        table = _json(path, text, lines)
    else:
        table = _csv(path, lines)
    return Table(table.rows, table.remarks, path.parent)


def _said(path: Path) -> str:
    return readable(str(path))


def _several(path: Path, runs: Sequence[str]) -> RecordError:
    return RecordError(
        f"{_said(path)} holds {len(runs)} runs ({listed(runs)}): give the log of one of them"
    )


# Text


def _csv(path: Path, lines: list[str]) -> Table:
    while len(lines) > 1 and lines[0].startswith("#"):
        lines = lines[1:]
    delimiter = max(",;\t", key=lines[0].count)
    header, *rows = csv.reader(lines, delimiter=delimiter, skipinitialspace=True)
    header = [name.strip() for name in header]
    if not rows or all(re.fullmatch(r"[-+.\deE]+", name) for name in header if name):
        raise RecordError(
            f"{_said(path)} has no {'rows' if not rows else 'header'}: a line that names the columns and one line per "
            "step are expected"
        )
    twice = sorted({name for name in header if name and header.count(name) > 1})
    if twice:
        raise RecordError(
            f"{_said(path)} has two columns named {listed(twice)}: rename or remove one"
        )
    remarks = []
    kept: list[Row] = []
    for number, cells in enumerate(rows, 2):
        if [cell.strip() for cell in cells] == header:
            remarks.append(f"the header stands again in row {number}: the log was continued")
            continue
        while len(cells) > len(header) and not cells[-1].strip():
            cells = cells[:-1]
        if len(cells) < len(header) and number == len(rows) + 1 and len(kept):
            remarks.append("the last row is cut off and was left out")
            continue
        if len(cells) != len(header):
            raise RecordError(
                f"{_said(path)}: row {number} has {len(cells)} cells, the header {len(header)}; where two logs were "
                "written into one file, give them one by one"
            )
        if delimiter == ";":  # the decimal sign is a comma where that cannot separate
            cells = [cell.replace(",", ".") for cell in cells]
        kept.append({name: cell for name, cell in zip(header, cells) if name})
    return Table(_shaped(path, kept), tuple(remarks))


def _json(path: Path, text: str, lines: list[str]) -> Table:
    try:
        whole = parse_json(text)
    except ValueError as error:
        if len(lines) < 2 or text.lstrip()[0] == "[":
            raise ValueError(f"not JSON: {error}") from error
        return _json_lines(path, lines)
    rows: Any = whole
    if isinstance(rows, dict):
        rows = rows.get("log_history", rows.get("history", rows))
    if isinstance(rows, dict):
        rows = _from_columns(rows)
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise RecordError(
            f"{_said(path)} is not a training log: a trainer_state.json (with log_history), a list of rows, lists of one "
            "length or one object per line is expected"
        )
    return Table(_shaped(path, [_flat(row) for row in rows]))


def _json_lines(path: Path, lines: list[str]) -> Table:
    rows: list[Row] = []
    remarks: list[str] = []
    for number, line in enumerate(lines, 1):
        try:
            row = parse_json(line)
        except ValueError as error:
            if number == len(lines) and rows:
                remarks.append("the last line is cut off and was left out")
                continue
            raise ValueError(f"line {number} is not JSON: {error}") from error
        if not isinstance(row, dict):
            raise RecordError(
                f"{_said(path)}: line {number} is not an object; one object per line is expected"
            )
        rows.append(_flat(row))
    return Table(_shaped(path, rows), tuple(remarks))


def _from_columns(columns: Mapping[str, Any]) -> list[Row] | None:
    """An object of lists of one length, or one of numbers: a single row."""
    lists = {name: value for name, value in columns.items() if isinstance(value, list)}
    if not lists:
        return [columns] if columns else None
    if len({len(value) for value in lists.values()}) > 1:
        return None
    return [dict(zip(lists, values)) for values in zip(*lists.values())]


def _flat(row: Row, depth: int = DEPTH) -> Row:
    """`{"train": {"loss": 2}}` as `{"train/loss": 2}`."""
    flat: dict[str, Any] = {}
    for name, value in row.items():
        if isinstance(value, dict) and depth:
            flat |= {f"{name}/{inner}": x for inner, x in _flat(value, depth - 1).items()}
        else:
            flat[name] = value
    return flat


# What tables of other tools look like


def _shaped(path: Path, rows: Sequence[Row]) -> list[Row]:
    """One row per step, under the metrics' own names, of one run."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    known = {plain(name): name for name in names}
    key = next((known[name] for name in KEYS if name in known), None)
    if "value" in known and key is not None:
        return _long(path, rows, known, key)
    if "value" in known and known.keys() <= {"wall_time", "step", "value"}:
        # TensorBoard's download of one curve: what it is of stands in the name of the file only.
        tag = path.stem.rpartition("-tag-")[2]
        return [{("step" if plain(n) == "step" else tag): row[n] for n in row if plain(n) != "wall_time"} for row in rows]  # fmt: skip
    return _of_one_run(path, rows, names)


def _long(path: Path, rows: Sequence[Row], known: Mapping[str, str], key: str) -> list[Row]:
    """A row per number: MLflow's download, our own export (rank 0, without layers)."""
    run = next((known[name] for name in RUNS if name in known), None)
    runs = sorted({str(row.get(run)) for row in rows}) if run else []
    if len(runs) > 1:
        raise _several(path, runs)
    step, rank, layer = (known.get(name) for name in ("step", "rank", "layer"))
    return [
        {"step": row.get(step) if step else None, str(row.get(key)): row.get(known["value"])}
        for row in rows
        if str(row.get(rank, "0") if rank else "0") == "0" and not (layer and row.get(layer))
    ]


def _of_one_run(path: Path, rows: Sequence[Row], names: Sequence[str]) -> list[Row]:
    """W&B's download of curves: `run - metric`, with a band around each."""
    of_runs = [name for name in names if " - " in name]
    banded = any(name.endswith(BAND) for name in names)
    if not of_runs or not (banded or len(of_runs) >= len(names) - 1):
        return list(rows)
    runs = sorted({name.rpartition(" - ")[0] for name in of_runs})
    if len(runs) > 1:
        raise _several(path, runs)
    keep = {name: name.rpartition(" - ")[2] for name in names if not name.endswith(BAND)}
    return [{keep[name]: value for name, value in row.items() if name in keep} for row in rows]


# Folders


def _of_folder(path: Path) -> Table:
    for files in (_trainer_states(path), *_by_name(path)):
        if len(files) > 1:
            raise _several(path, [str(file.relative_to(path)) for file in files])
        if files:
            return _of_file(files[0])
    table = _mlflow(path) or _tensorboard(path)
    if table is not None:
        return table
    raise RecordError(
        f"{_said(path)} holds neither a recorded run nor a log: give a run's folder, TensorBoard events, mlruns, a "
        "trainer_state.json, or a .csv or .jsonl file"
    )


def _trainer_states(path: Path) -> list[Path]:
    """The state of a Trainer's folder: its own, or that of the last checkpoint."""
    own = path / "trainer_state.json"
    if is_there(own):
        return [own]
    saved = [(m, f) for f in path.glob("checkpoint-*") if (m := re.search(r"-(\d{1,12})$", f.name))]
    last = sorted(saved, key=lambda pair: int(pair[0][1]))[-1:]
    return [f / own.name for _, f in last if is_there(f / own.name)]


def _by_name(path: Path) -> Iterator[list[Path]]:
    for pattern in ("metrics.csv", "*history*.jsonl", "*/metrics.csv", "*.csv", "*.jsonl"):
        yield sorted(file for file in path.glob(pattern) if file.is_file())


def _mlflow(path: Path) -> Table | None:
    """`mlruns/<experiment>/<run>/metrics/<name>`, from any of these folders."""
    found = []
    folders = [path] if path.name == "metrics" else sorted(path.rglob("metrics"))
    for folder in folders:
        rows: list[Row] = []
        for file in sorted(folder.rglob("*")) if folder.is_dir() else ():
            lines = _metric_lines(file) if file.is_file() else []
            rows += _metric_rows(file.relative_to(folder).as_posix(), lines)
        if rows:
            found.append((folder, rows))
    if len(found) > 1:
        raise _several(path, [str(folder.parent.relative_to(path)) for folder, _ in found])
    return Table(found[0][1], (), found[0][0].parent) if found else None


def _metric_lines(file: Path) -> list[str]:
    try:
        lines = read_text(file).splitlines()
    except ValueError:  # some other file of bytes
        return []
    return lines if lines and MLFLOW.fullmatch(lines[0]) else []


def _metric_rows(name: str, lines: Sequence[str]) -> list[Row]:
    cells = [line.split() for line in lines if line.strip()]
    return [
        {"step": row[2] if len(row) > 2 else number, name: row[1]}
        for number, row in enumerate(cells)
        if len(row) > 1
    ]


def _tensorboard(path: Path) -> Table | None:
    """Rows of one tag and step each, read with TensorBoard's own reader."""
    files = sorted(path.rglob("*tfevents*"))
    if not files:
        return None
    for file in files:
        require_file(file)
    folders = sorted({file.parent for file in files})
    # One run may write its splits into folders of their own (`validation`, `loss_val` by add_scalars).
    splits = {
        folder: word for folder in folders if (word := _split(folder.name)) and folder != path
    }
    runs = {folder.parent if folder in splits else folder for folder in folders}
    if len(folders) > 1 and len(runs) > 1:
        raise _several(path, [str(folder.relative_to(path)) for folder in folders])
    try:
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    except ImportError:
        raise RecordError(
            "reading a TensorBoard folder needs TensorBoard: pip install tensorboard"
        ) from None
    rows: list[Row] = []
    for folder in folders:
        lead = f"{splits[folder]}/" if folder in splits and len(folders) > 1 else ""
        try:
            events = EventAccumulator(str(folder), size_guidance={"scalars": 0, "tensors": 0})
            events.Reload()
            for tag in events.Tags()["scalars"]:
                rows += [{"step": e.step, lead + tag: e.value} for e in events.Scalars(tag)]
            for tag in events.Tags()["tensors"]:
                for event in events.Tensors(tag):
                    values = event.tensor_proto.float_val or event.tensor_proto.double_val
                    if len(values) == 1:
                        rows.append({"step": event.step, lead + tag: values[0]})
        except Exception as error:  # the library raises whatever its parser meets
            raise ValueError(f"TensorBoard cannot read {folder.name}: {error}") from error
    return Table(rows, (), path)


def _split(name: str) -> str | None:
    word = plain(name).split("_")[-1]
    return word if word in (*TRAIN, *EVAL) else None
