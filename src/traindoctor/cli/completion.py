"""Tab completion of what names a file: click leaves plain text alone, and no shell guesses behind a program's own answer."""

from collections.abc import Callable
from typing import Any

import click

# For `shell_complete=`: the shell's own completion of files.
files = click.Path().shell_complete


def json_option(text: str) -> Callable[[Any], Any]:
    """`--json FILE` of the commands that give an answer; `text` is its help."""
    return click.option("--json", "json_file", metavar="FILE", shell_complete=files, help=text)
