"""traindoctor diagnose: judge a finished record, or another tool's log, with today's checks."""

import sys
from pathlib import Path

import click

from traindoctor.cli.completion import json_option
from traindoctor.diagnosis import Diagnosis, diagnose
from traindoctor.errors import RecordError
from traindoctor.logs import read_log
from traindoctor.plain_files import is_there
from traindoctor.record import Record, open_record
from traindoctor.record.stored_ranks import record_files
from traindoctor.report import json as json_report
from traindoctor.report.after_run import print_verdict

# Exit status of `check` and `diagnose`; 2 is wrong use.
STATUS = {"healthy": 0, "sick": 1, "inconclusive": 3, "running": 3}


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


def tell(diagnosis: Diagnosis, record: Record, source: Path, json_file: str | None) -> int:
    """Prints the verdict (JSON on standard output replaces it) and gives the exit status."""
    if json_file is not None:
        json_report.write(diagnosis, json_file)
    if json_file != "-":
        print_verdict(diagnosis, record, sys.stdout, source)
    return STATUS[diagnosis.verdict]


@click.command()
@json_option("Also write the verdict as JSON; - for standard output.")
@click.option(
    "--vocab-size",
    type=click.IntRange(min=2),
    metavar="N",
    help="For a log: vocabulary size of the model, to know the loss of a blind guess.",
)
@click.argument("source", type=click.Path(path_type=Path))
def command(json_file: str | None, vocab_size: int | None, source: Path) -> int:
    """Judge a recorded run (its folder), or the log of another tool.

    Logs: CSV, JSON, JSON lines, a Trainer's trainer_state.json, Lightning's metrics.csv, downloads of W&B, MLflow and
    TensorBoard, and folders of these. A log only has curves: they can show that something is wrong, never that a run is healthy.

    Exit status: 0 healthy, 1 sick, 2 wrong use, 3 inconclusive.
    """
    record = read(source, vocab_size=vocab_size)
    return tell(diagnose(record), record, source, json_file)
