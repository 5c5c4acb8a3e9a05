"""`traindoctor mcp`: a server for coding agents on standard input and output."""

from pathlib import Path

import click

from traindoctor.errors import TraindoctorError


@click.command()
@click.option(
    "--folder",
    type=click.Path(path_type=Path),
    default=Path("."),
    help="Folder whose scripts may be run and whose records may be read.  [default: the current one]",
)
def command(folder: Path) -> None:
    """Serve run, check, diagnose, explain, compare, the list of runs and their series to coding agents.

    The protocol is the Model Context Protocol over standard input and output; a client starts this command itself. An
    agent can name nothing outside of --folder. Scripts that it runs are run with your rights, as if you ran them.
    """
    try:
        from traindoctor.agents.server import serve
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("mcp", "anyio", "pydantic"):
            raise
        raise TraindoctorError(
            "the server needs the mcp package, which is not installed: pip install 'traindoctor[mcp]'"
        ) from None
    serve(folder)
