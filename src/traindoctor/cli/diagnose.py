"""traindoctor diagnose: judge a finished record, or another tool's log, with today's checks."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import click

from traindoctor.checks.base import CONFIDENCE, Finding
from traindoctor.diagnosis import Diagnosis, Symptom, diagnose, examine, judge
from traindoctor.errors import RecordError
from traindoctor.logs import SERIES_SAID, read_log, signs
from traindoctor.plain_files import is_there
from traindoctor.record import Record, open_record
from traindoctor.record.reader import record_files
from traindoctor.report import json as json_report
from traindoctor.report import terminal
from traindoctor.report.words import listed

# Exit status of `check` and `diagnose`; 2 is wrong use.
STATUS = {"healthy": 0, "sick": 1, "inconclusive": 3}
# Columns that a note lists: more than this nobody reads.
MOST_COLUMNS = 12
DECIDES = "a log alone proves no cause: `traindoctor run SCRIPT` would test them"


def read(source: Path, *, vocab_size: int | None = None) -> Record:
    """The record of a run folder or file; a log is read as what it can say."""
    if not is_there(source):
        raise RecordError(
            f"there is nothing at {source}: give the folder of a run, or a log (.csv, .json, .jsonl, a folder of "
            "TensorBoard, MLflow or a Trainer)"
        )
    if source.suffix == ".sqlite" or (source.is_dir() and record_files(source)):
        return open_record(source)
    return read_log(source, vocab_size=vocab_size)


def judged(record: Record) -> Diagnosis:
    """The verdict. Curves prove nothing: on a log it is inconclusive, whatever they show."""
    log = record.fact("imported")
    if log is None:
        return diagnose(record)
    shown, notes = signs(record), columns(log)
    outcomes = [
        possible(outcome) if isinstance(outcome, Finding) else outcome
        for outcome in examine(record, notes=notes)
    ]
    seen = [Symptom(s.name, s.sentence, s.since_step, s.grave) for s in shown]
    found = (outcome for outcome in outcomes if isinstance(outcome, Finding))
    seen += [Symptom(one.cause, one.summary, one.since_step) for one in found]
    diagnosis = judge(outcomes, seen, steps=logged_steps(record), notes=notes)
    return replace(diagnosis, verdict="inconclusive", reason=f"{shown[0].sentence}; {DECIDES}")


def logged_steps(record: Record) -> int:
    """Up to the last point; most tools count from 1."""
    spans = [record[name].steps for name in record.names]
    first, last = min(int(s[0]) for s in spans), max(int(s[-1]) for s in spans)
    return last + 1 if first == 0 else last


def possible(finding: Finding) -> Finding:
    """The same from a curve alone."""
    most = CONFIDENCE["curve"][1]
    confidence = min(finding.confidence, most)
    return replace(finding, grade="curve", status="possible", confidence=confidence)


def columns(log: dict[str, object]) -> list[str]:
    """What was read of a log: columns that are understood, those that are not, and what was left out."""
    used, ignored, remarks = (log.get(name) or {} for name in ("used", "ignored", "remarks"))
    assert isinstance(used, dict)
    assert isinstance(ignored, dict)
    assert isinstance(remarks, list | dict)
    names = [f"{name} ({SERIES_SAID.get(series, series)})" for name, series in used.items()]
    notes = ["columns understood: " + listed(names, MOST_COLUMNS)]
    if ignored:
        said = [f"{name} ({why})" for name, why in ignored.items()]
        notes.append("columns ignored: " + listed(said, MOST_COLUMNS))
    if remarks:
        notes.append("; ".join(map(str, remarks)))
    return notes


def tell(diagnosis: Diagnosis, json_file: str | None) -> int:
    """Prints the verdict (JSON on standard output replaces it) and gives the exit status."""
    if json_file is not None:
        json_report.write(diagnosis, json_file)
    if json_file != "-":
        terminal.show(diagnosis, sys.stdout)
    return STATUS[diagnosis.verdict]


@click.command()
@click.option(
    "--json",
    "json_file",
    metavar="FILE",
    help="Also write the verdict as JSON; - for standard output.",
)
@click.option(
    "--vocab-size",
    type=click.IntRange(min=2),
    metavar="N",
    help="Of a log: tokens of the model, to know the loss of a blind guess.",
)
@click.argument("source", type=click.Path(path_type=Path))
def command(json_file: str | None, vocab_size: int | None, source: Path) -> int:
    """Judge a recorded run (its folder), or the log of another tool.

    Logs: CSV, JSON, JSON lines, a Trainer's trainer_state.json, Lightning's metrics.csv, downloads of W&B, MLflow and
    TensorBoard, and folders of these. A log shows curves: it is told what they show, never that a run is healthy.

    Exit status: 0 healthy, 1 sick, 2 wrong use, 3 inconclusive.
    """
    return tell(judged(read(source, vocab_size=vocab_size)), json_file)
