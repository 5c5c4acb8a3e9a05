"""traindoctor causes: the list of causes that can be told apart."""

from __future__ import annotations

import json

import click

from traindoctor.checks import FAMILIES


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
    width = max((len(check.slug) for checks in FAMILIES.values() for check in checks), default=0)
    for family, checks in FAMILIES.items():
        if checks:
            click.echo(family)
        for check in checks:
            click.echo(f"  {check.slug:<{width}}  {check.code}  {check.title}")
    click.echo("\n`traindoctor explain CAUSE` prints the page of one.")
