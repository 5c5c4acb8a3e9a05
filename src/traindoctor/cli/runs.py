"""`traindoctor runs`: what was recorded here."""

from __future__ import annotations

import time
from pathlib import Path

import click


@click.command()
@click.argument("folder", type=click.Path(path_type=Path), default=Path("runs"))
def command(folder: Path) -> int:
    """List runs, newest first: steps, last loss, how they ended, the verdict."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from traindoctor.record.runs import find_runs
    from traindoctor.record.text import readable
    from traindoctor.report.words import number

    runs = find_runs(folder)
    if not runs:
        click.echo(f"no runs in {folder}")
        return 0
    table = Table(box=None, pad_edge=False)
    # The name is what a reader goes on with: a long reason is wrapped, not the name.
    widest = max(len(readable(str(run.path))) for run in runs)
    table.add_column("run", no_wrap=True, min_width=widest)
    for column in ("begun", "steps", "loss", "ended", "verdict"):
        table.add_column(column, justify="right" if column in {"steps", "loss"} else "left")
    for run in runs:
        if run.problem is not None:
            begun = time.strftime("%Y-%m-%d %H:%M", time.localtime(run.created))
            table.add_row(
                Text(readable(str(run.path))), begun, "", "", "unreadable", Text(run.problem)
            )
            continue
        table.add_row(
            Text(readable(str(run.path))),
            time.strftime("%Y-%m-%d %H:%M", time.localtime(run.created)),
            str(run.steps),
            "" if run.loss is None else number(run.loss).replace("nan", "NaN"),
            Text("running or killed" if run.ended is None else str(run.ended)),
            Text(" ".join(filter(None, (run.verdict, ", ".join(run.causes[:2]))))),
        )
    Console(width=None if Console().is_terminal else 160).print(table)
    return 0
