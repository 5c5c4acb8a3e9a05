"""Logs of other tools as a record: CSV, JSON lines, a Trainer's trainer_state.json, a TensorBoard folder."""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from traindoctor.errors import RecordError
from traindoctor.plain_files import parse_json, read_text, require_file
from traindoctor.record.schema import Record, Series
from traindoctor.record.text import readable
from traindoctor.record.valid import FIRST_STEP, LAST_STEP
from traindoctor.record.writer import RecordWriter

# What other tools call our series. Names are compared in lower case, with everything but letters and digits
# turned into one underscore, and without a leading "train".
NAMES: dict[str, str] = {
    "loss": "loss.root",
    "ce": "loss.root",
    "cross_entropy": "loss.root",
    "nll": "loss.root",
    "loss_step": "loss.root",
    "eval_loss": "loss.eval",
    "val_loss": "loss.eval",
    "valid_loss": "loss.eval",
    "validation_loss": "loss.eval",
    "test_loss": "loss.eval",
    "loss_val": "loss.eval",
    "lr": "optim.lr",
    "learning_rate": "optim.lr",
    "lr_adamw": "optim.lr",
    "grad_norm": "grad.norm",
    "gradient_norm": "grad.norm",
    "gnorm": "grad.norm",
    "total_grad_norm": "grad.norm",
    "grad_norm_clipped": "grad.norm_clipped",
    "clip": "clip.limit",
    "max_grad_norm": "clip.limit",
    "param_norm": "param.norm",
    "weight_norm": "param.norm",
    "update_norm": "update.norm",
    "step_time": "time.step",
    "time_per_step": "time.step",
    "seconds": "time.step",
    "tokens": "batch.tokens",
    "scale": "scaler.scale",
    "loss_scale": "scaler.scale",
    "memory": "memory.rss",
}
# What our own boards put before the names of a record's series.
OUR_TAG = "traindoctor/"
# A log's own names are kept; nobody reads more of one than this.
LONGEST_NAME = 200
STEPS = (
    "step",
    "global_step",
    "iteration",
    "iter",
    "it",
    "steps",
    "update",
    "num_updates",
    "batch",
)


def read_log(source: Path | str) -> Record:
    """The record of a log file or TensorBoard folder: what it says, and the fact `imported`."""
    path = Path(source)
    try:
        rows = _rows(path)
        columns = _columns(rows)
    except (OSError, ValueError, csv.Error) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise RecordError(
            f"cannot read {path} ({reason}): give a CSV or JSON log in UTF-8, or a TensorBoard folder"
        ) from error
    if not columns:
        raise RecordError(
            f"{path} holds no number under a known name: a column such as step, loss, lr or grad_norm is needed"
        )
    series = {name: Series(name, steps, values) for name, (steps, values) in columns.items()}
    steps = max(int(one.steps[-1]) + 1 for one in series.values())
    facts = {
        "imported": {"from": readable(path.name), "columns": sorted(series), "rows": len(rows)},
        "run.steps": steps,
        "run.ended": 0,  # nothing is added to it any more
    }
    return Record(series=series, facts=facts)


def import_log(source: Path | str, folder: Path) -> Path:
    """Writes the log as a record in a run folder."""
    record = read_log(source)
    writer = RecordWriter(folder, meta={"imported": str(source)})
    for name in record.names:
        series = record[name]
        for step, value in zip(series.steps.tolist(), series.values.tolist()):
            writer.scalar(name, step, value)
    for fact, value in record.facts.items():
        writer.fact(fact, value)
    writer.close()
    return folder


def _rows(path: Path) -> list[Mapping[str, Any]]:
    if path.is_dir():
        return _tensorboard(path)
    text = read_text(path)
    if path.suffix == ".json":
        return _json(path, text)
    if path.suffix in {".jsonl", ".ndjson"}:
        return [_object(path, line) for line in text.splitlines() if line.strip()]
    return _csv(path, text)


def _csv(path: Path, text: str) -> list[Mapping[str, Any]]:
    lines = [line for line in text.splitlines() if line.strip()]
    if len(lines) < 2:
        raise RecordError(f"{path} has no rows: a header line and one line per step are expected")
    delimiter = max(",;\t", key=lines[0].count)
    return list(csv.DictReader(lines, delimiter=delimiter, skipinitialspace=True))


def _object(path: Path, text: str) -> Mapping[str, Any]:
    value = _parsed(text)
    if not isinstance(value, dict):
        raise RecordError(f"{path}: an object per line is expected, a {type(value).__name__} came")
    return value


def _parsed(text: str) -> Any:
    try:
        return parse_json(text)
    except ValueError as error:
        raise ValueError(f"no JSON: {error}") from error


def _json(path: Path, text: str) -> list[Mapping[str, Any]]:
    value = _parsed(text)
    if isinstance(value, dict):
        value = value.get("log_history", value.get("history", value))
    if isinstance(value, dict):  # columns instead of rows
        lengths = {len(v) for v in value.values() if isinstance(v, list)}
        if len(lengths) == 1:
            count = lengths.pop()
            return [
                {k: v[i] for k, v in value.items() if isinstance(v, list)} for i in range(count)
            ]
    if not isinstance(value, list) or not all(isinstance(row, dict) for row in value):
        raise RecordError(
            f"{path} is no training log: a trainer_state.json (with log_history) or a list of rows is expected"
        )
    return value


def _tensorboard(path: Path) -> list[Mapping[str, Any]]:
    """One row per tag and step, read with TensorBoard's own reader."""
    files = sorted(path.rglob("*tfevents*"))
    if not files:
        raise RecordError(f"{path} holds neither a record nor TensorBoard event files")
    for file in files:
        require_file(file)
    try:
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    except ImportError:
        raise RecordError(
            "reading a TensorBoard folder needs TensorBoard: pip install tensorboard"
        ) from None
    rows: list[Mapping[str, Any]] = []
    for folder in sorted({file.parent for file in files}):
        try:
            events = EventAccumulator(str(folder), size_guidance={"scalars": 0, "tensors": 0})
            events.Reload()
            for tag in events.Tags()["scalars"]:
                rows += [{"step": e.step, tag: e.value} for e in events.Scalars(tag)]
            for tag in events.Tags()["tensors"]:
                for event in events.Tensors(tag):
                    values = event.tensor_proto.float_val or event.tensor_proto.double_val
                    if len(values) == 1:
                        rows.append({"step": event.step, tag: values[0]})
        except Exception as error:  # the library raises whatever its parser meets
            raise ValueError(f"TensorBoard cannot read {folder.name}: {error}") from error
    return rows


def _columns(rows: Iterable[Mapping[str, Any]]) -> dict[str, tuple[Any, Any]]:
    """Our name -> (steps, values), in order of steps; a row without a step takes its own number."""
    rows = list(rows)
    keys = dict.fromkeys(key for row in rows for key in row if key is not None)
    names = _our_names([key for key in keys if _plain(key.removeprefix(OUR_TAG)) not in STEPS])
    found: dict[str, dict[int, float]] = {}
    for number, row in enumerate(rows):
        step = _step(row, number)
        for key, raw in row.items():
            value = _number(raw)
            if key in names and value is not None:
                found.setdefault(names[key], {})[step] = value
    columns = {}
    for name, points in found.items():
        steps = np.array(sorted(points), dtype=np.int64)
        columns[name] = (
            steps,
            np.array([points[step] for step in steps.tolist()], dtype=np.float64),
        )
    return columns


def _step(row: Mapping[str, Any], number: int) -> int:
    own = f"{OUR_TAG}step"  # beside a board's own step, which may be ahead
    for key, value in [(own, row.get(own)), *row.items()]:
        if isinstance(key, str) and _plain(key.removeprefix(OUR_TAG)) in STEPS:
            step = _number(value)
            if step is not None and math.isfinite(step):
                if not FIRST_STEP <= step <= LAST_STEP:
                    raise ValueError(f"row {number + 1} has step {step:g}, which is no count")
                return int(step)
    return number


def _plain(name: str) -> str:
    plain = re.sub(r"[^a-z0-9]+", "_", name[:LONGEST_NAME].lower()).strip("_")
    return plain.removeprefix("train_").removeprefix("training_").removesuffix("_step") or plain


def _our_names(keys: Iterable[str]) -> dict[str, str]:
    """Their name -> ours. What our own board wrote goes before what its script logs under a like name."""
    ours = {key: _our_name(key.removeprefix(OUR_TAG)) for key in keys if key.startswith(OUR_TAG)}
    names = dict(ours)
    for key in keys:
        if key not in ours:
            name = _our_name(key)
            names[key] = f"log.{_plain(key)}" if name in ours.values() else name
    return names


def _our_name(name: str) -> str:
    """A known name of ours, else `log.<their name>`: nothing is thrown away."""
    if re.fullmatch(r"[a-z_]+\.[a-z_]+", name):
        return name
    plain = _plain(name)
    return NAMES.get(plain, f"log.{plain}")


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or value is None:
        return None
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return None
