"""`traindoctor import metrics.csv -o DIR`: another tool's metrics as a record."""

import sys
from pathlib import Path

import click

from traindoctor.cli.completion import files


@click.command()
@click.option(
    "-o",
    "--out",
    metavar="DIR",
    shell_complete=files,
    help="Folder of the run (default: a new one under runs/).",
)
@click.option(
    "--vocab-size",
    type=click.IntRange(min=2),
    metavar="N",
    help="Vocabulary size of the model, to know the loss of a blind guess.",
)
@click.argument("source", metavar="FILE", type=click.Path(path_type=Path))
def command(out: str | None, vocab_size: int | None, source: Path) -> int:
    """Turn the log of another tool, whatever `traindoctor diagnose` reads, into a recorded run.
    `traindoctor ui`, `report` and `diagnose` then treat it as any other run."""
    from traindoctor.capture.folders import new_folder
    from traindoctor.diagnosis import diagnose
    from traindoctor.diagnosis.of_a_log import columns
    from traindoctor.errors import RecordError
    from traindoctor.logs import read_log, write_log
    from traindoctor.plain_files import is_there
    from traindoctor.record.stored_ranks import record_files
    from traindoctor.record.wording import wrapped
    from traindoctor.report import next_steps, terminal
    from traindoctor.report.json import as_dict

    if not is_there(source):
        raise RecordError(f"there is nothing at {source}: give a log file, or a folder of logs")
    if out is not None and Path(out).is_dir() and record_files(Path(out)):
        raise RecordError(f"{out} already holds a recorded run: choose another folder with -o")
    record = read_log(source, vocab_size=vocab_size)  # before a folder is made for it
    diagnosis = diagnose(record)
    record.facts["verdict"] = as_dict(diagnosis)
    folder = write_log(record, new_folder(source.stem, out), source)
    steps = "1 step" if diagnosis.steps == 1 else f"{diagnosis.steps} steps"
    click.echo(f"{steps}, {len(record.names)} series: {folder}")
    width = terminal.width_of(sys.stdout)
    for line in columns(record.facts["imported"]):
        click.echo("\n".join(wrapped(line, width, "", "  ")))
    commands = next_steps.next_steps(diagnosis, folder)
    click.echo(next_steps.text(commands, width), nl=False)
    return 0
