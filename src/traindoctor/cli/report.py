"""`traindoctor report`: what a run's record shows, as a page, as Markdown, as JSON, as PNG plots."""

from pathlib import Path

import click

from traindoctor.errors import TraindoctorError
from traindoctor.integrations.board_beside import BOARDS, place

ENDINGS = {".html": "html", ".htm": "html", ".md": "md", ".json": "json"}


@click.command()
@click.argument("source", metavar="RUN", type=click.Path(path_type=Path))
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    help="File to write (default: report.html in the run's folder; md and json: standard output).",
)
@click.option(
    "--format",
    "form",
    type=click.Choice(["html", "md", "json"]),
    help="Default: by the ending of the file, else html.",
)
@click.option(
    "--plots", type=click.Path(path_type=Path), metavar="DIR", help="Also write the plots as PNG."
)
@click.option(
    "--board",
    type=click.Choice(BOARDS),
    help="Also send the health measures and the verdict to a board.",
)
def command(
    source: Path, output: Path | None, form: str | None, plots: Path | None, board: str | None
) -> None:
    """Write the report of a run: one HTML file that opens offline, Markdown or JSON.

    RUN is the folder of a run, or a log that `traindoctor diagnose` reads.
    """
    from traindoctor.cli.diagnose import read
    from traindoctor.diagnosis import diagnose
    from traindoctor.report import html, markdown
    from traindoctor.report import json as json_report

    form = form or by_ending(output)
    record = read(source)
    diagnosis = diagnose(record)
    if form == "html":
        target = output or (source if source.is_dir() else source.parent) / "report.html"
        html.write(record, json_report.as_dict(diagnosis), target, name=source.resolve().name)
        click.echo(f"traindoctor: the report is {target}", err=True)
    elif form == "json":
        json_report.write(diagnosis, output or "-")
    else:
        write_text(markdown.report(diagnosis), output)
    if plots is not None:
        from traindoctor.report.plots import write_plots

        written = write_plots(record, plots)
        click.echo(f"traindoctor: {len(written)} plots in {plots}", err=True)
    if board is not None:
        from traindoctor.integrations.boards import Mirror, open_board

        folder = source if source.is_dir() else source.parent
        Mirror(record, open_board(board, folder / "tensorboard")).finish(diagnosis)
        click.echo(f"traindoctor: measures and verdict are in {place(board, folder)}", err=True)


def by_ending(output: Path | None) -> str:
    """The format that the file's name asks for."""
    if output is None:
        return "html"
    if output.suffix not in ENDINGS:
        raise TraindoctorError(
            f"{output}: which kind of report this is cannot be told from the name; call it *.html, *.md or *.json, "
            "or give --format"
        )
    return ENDINGS[output.suffix]


def write_text(text: str, output: Path | None) -> None:
    if output is None:
        click.echo(text, nl=False)
        return
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        output.write_text(text, encoding="utf-8")
    except OSError as error:
        raise TraindoctorError(f"cannot write the report to {output}: {error}") from error
