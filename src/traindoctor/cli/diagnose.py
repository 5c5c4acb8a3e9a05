"""traindoctor diagnose: judge a finished record, or another tool's log, with today's checks."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from traindoctor.diagnosis import Diagnosis, diagnose
from traindoctor.errors import RecordError
from traindoctor.plain_files import is_there
from traindoctor.record import Record, open_record
from traindoctor.report import json as json_report
from traindoctor.report import terminal

# Exit status of `check` and `diagnose`; 2 is wrong use.
STATUS = {"healthy": 0, "sick": 1, "inconclusive": 3}


def read(source: Path) -> Record:
    """The record of a run folder or file; a .csv or .json log is read as what it can say."""
    if not is_there(source):
        raise RecordError(f"there is nothing at {source}: give a run folder, a .csv or a .json log")
    if source.is_dir() or source.suffix == ".sqlite":
        return open_record(source)
    from traindoctor.record.importers import read_log

    return read_log(source)


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
@click.argument("source", type=click.Path(path_type=Path))
def command(json_file: str | None, source: Path) -> int:
    """Judge a recorded run (its folder), a metrics.csv or a Hugging Face trainer_state.json.

    Exit status: 0 healthy, 1 sick, 2 wrong use, 3 inconclusive.
    """
    return tell(diagnose(read(source)), json_file)
