"""traindoctor explain: the page of a cause."""

import sys

import click

from traindoctor.checks import BY_SLUG
from traindoctor.diagnosis import explain


def causes(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """For the shell's completion: slugs, or codes where one was begun."""
    codes = [check.code for check in BY_SLUG.values()] if incomplete else []
    return [one for one in (*BY_SLUG, *codes) if one.startswith(incomplete)]


@click.command()
@click.argument("cause", shell_complete=causes)
def command(cause: str) -> None:
    """Print the page of CAUSE, a slug (missing-zero-grad) or a code (GRD001)."""
    page = explain(cause)
    if not sys.stdout.isatty():
        click.echo(page, nl=False)
        return
    from rich.console import Console
    from rich.markdown import Markdown

    Console().print(Markdown(page))
