"""`traindoctor runs`: what was recorded here."""

from __future__ import annotations

import sys
import textwrap
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from traindoctor.record.runs import Run

HEAD = ("run", "begun", "steps", "loss", "ended", "verdict")
# Numbers stand under each other by their last digit.
RIGHT = frozenset({"steps", "loss"})
GAP = 2
# A name that leaves less for the verdict stands on a line of its own.
LEAST_VERDICT = 20


@click.command()
@click.argument("folder", type=click.Path(path_type=Path), default=Path("runs"))
def command(folder: Path) -> int:
    """List runs, newest first: steps, last loss, how they ended, the verdict."""
    from traindoctor.record.runs import find_runs
    from traindoctor.report import terminal

    runs = find_runs(folder)
    if not runs:
        click.echo(f"no runs in {folder}")
        return 0
    click.echo("\n".join(table([cells(run) for run in runs], terminal.width_of(sys.stdout))))
    return 0


def cells(run: Run) -> tuple[str, ...]:
    from traindoctor.record.text import readable
    from traindoctor.report.words import number

    name = readable(str(run.path))
    begun = time.strftime("%Y-%m-%d %H:%M", time.localtime(run.created))
    if run.problem is not None:
        return (name, begun, "", "", "unreadable", readable(run.problem))
    loss = "" if run.loss is None else number(run.loss).replace("nan", "NaN")
    ended = how_it_ended(run.ended)
    verdict = " ".join(filter(None, (run.verdict, ", ".join(run.causes[:2]))))
    return (name, begun, str(run.steps), loss, ended, verdict)


def how_it_ended(ended: Any) -> str:
    """'ok', 'status 3', 'RuntimeError', ..."""
    from traindoctor.record.text import readable

    if ended is None:
        return "running or killed"
    if ended == 0:
        return "ok"
    return f"status {ended}" if isinstance(ended, int) else readable(str(ended))


def table(rows: Sequence[Sequence[str]], width: int) -> list[str]:
    """Columns in `width`. Names are copied, so they stay whole; what does not fit beside one stands below it."""
    sizes = [max(len(row[i]) for row in (HEAD, *rows)) for i in range(len(HEAD) - 1)]
    beside = sum(sizes[1:]) + GAP * len(sizes)
    below = sizes[0] + beside + LEAST_VERDICT > width
    if below:
        sizes[0] = 0
    lines = []
    for row in (HEAD, *rows):
        middle = [
            f"{cell:>{size}}" if name in RIGHT else f"{cell:<{size}}"
            for name, cell, size in zip(HEAD[1:-1], row[1:-1], sizes[1:])
        ]
        first = [] if below else [f"{row[0]:<{sizes[0]}}"]
        lead = (" " * GAP).join([*([""] if below else []), *first, *middle, ""])
        lines += [row[0]] if below else []
        if width - len(lead) < LEAST_VERDICT:
            lines.append(lead.rstrip())
            lead = " " * 2 * GAP
        wrapped = textwrap.wrap(row[-1], width - len(lead), break_on_hyphens=False) or [""]
        lines.append((lead + wrapped[0]).rstrip())
        lines += [" " * len(lead) + more for more in wrapped[1:]]
    return lines
