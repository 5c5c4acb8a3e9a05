"""`traindoctor import metrics.csv -o DIR`: another tool's metrics as a record."""

from __future__ import annotations

from pathlib import Path

import click


@click.command()
@click.option(
    "-o", "--out", metavar="DIR", help="Folder of the run (default: a new one under runs/)."
)
@click.argument("source", metavar="FILE", type=click.Path(path_type=Path))
def command(out: str | None, source: Path) -> int:
    """Turn metrics of another tool into a record: a CSV or JSON-lines file, a trainer_state.json, a folder of
    TensorBoard events. Then `traindoctor diagnose DIR` judges what the log can prove."""
    from traindoctor.capture.folders import new_folder
    from traindoctor.errors import RecordError
    from traindoctor.plain_files import is_there
    from traindoctor.record.importers import import_log, read_log

    if not is_there(source):
        raise RecordError(f"there is nothing at {source}: give a log file or a TensorBoard folder")
    record = read_log(source)  # before a folder is made for a log that cannot be read
    folder = import_log(source, new_folder(source.stem, out))
    steps = "1 step" if record.num_steps == 1 else f"{record.num_steps} steps"
    click.echo(f"{steps}, {len(record.names)} series: {folder}")
    return 0
