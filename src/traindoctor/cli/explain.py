"""traindoctor explain: the page of a cause."""

from __future__ import annotations

import sys

import click

from traindoctor.diagnosis import explain


@click.command()
@click.argument("cause")
def command(cause: str) -> None:
    """Print the page of CAUSE, a slug (missing-zero-grad) or a code (GRD001)."""
    page = explain(cause)
    if not sys.stdout.isatty():
        click.echo(page, nl=False)
        return
    from rich.console import Console
    from rich.markdown import Markdown

    Console().print(Markdown(page))
