"""traindoctor causes: the list of causes that can be told apart."""

import json
import sys

import click

from traindoctor.checks import BY_SLUG, FAMILIES
from traindoctor.checks.base import Check
from traindoctor.record.wording import wrapped
from traindoctor.report import terminal

LONGEST = max(len(slug) for slug in BY_SLUG)
# Under this a title beside the code has a word or two per line.
LEAST_TITLE = 30


@click.command()
@click.option("--json", "as_json", is_flag=True, help="As JSON, on standard output.")
def command(as_json: bool) -> None:
    """List the causes that can be told apart."""
    if as_json:
        rows = [
            {"cause": check.slug, "code": check.code, "family": family, "title": check.title}
            for family, checks in FAMILIES.items()
            for check in checks
        ]
        click.echo(json.dumps(rows, indent=1))
        return
    width = terminal.width_of(sys.stdout)
    for family, checks in FAMILIES.items():
        if checks:
            click.echo(family)
        for check in checks:
            click.echo("\n".join(row(check, width)))
    click.echo("\n`traindoctor explain CAUSE` prints the page of one.")


def row(check: Check, width: int) -> list[str]:
    """Cause, code and title; the title below the others where the window is narrow."""
    name = f"  {check.slug:<{LONGEST}}  {check.code}  "
    if len(name) + LEAST_TITLE > width:
        return [name.rstrip(), *wrapped(check.title, width, "    ", "    ")]
    return wrapped(check.title, width, name, " " * len(name))
