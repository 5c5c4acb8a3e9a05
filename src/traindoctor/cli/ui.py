"""`traindoctor ui`: look at runs in the browser, live."""

import sys
from pathlib import Path

import click

from traindoctor.errors import TraindoctorError


@click.command()
@click.argument("folder", type=click.Path(path_type=Path), default=Path("runs"))
@click.option("--port", type=click.IntRange(0, 65535), help="Port on 127.0.0.1 (0: any free one).")
@click.option("--no-browser", is_flag=True, help="Only print the address.")
@click.option("--beside", type=int, hidden=True, help="End after this process and the last page.")
def command(folder: Path, port: int | None, no_browser: bool, beside: int | None) -> None:
    """Look at runs in the browser, live.

    FOLDER is a run or a folder of runs, by default runs/. The page is served on this machine's loopback
    address alone; from elsewhere reach it by an ssh tunnel.
    """
    # A run that is about to begin has no folder yet; a mistyped name has none either.
    if beside is None and not folder.is_dir() and folder != Path("runs"):
        raise TraindoctorError(
            f"there is no folder {folder}: give the folder of a run, or one that holds runs"
        )
    from traindoctor.dashboard.launch import open_browser
    from traindoctor.dashboard.server import listen, serve, url_of

    with listen(port) as sock:
        url = url_of(sock)
        click.echo(f"traindoctor: {folder} at {url}")
        if beside is None:
            click.echo("Ctrl-C ends it.")
        # A process that waits for the address reads it from a pipe.
        sys.stdout.flush()
        if not no_browser:
            open_browser(url)
        serve(folder, sock, beside=beside)
