"""Tab completion of what names a file: click leaves plain text alone, and no shell guesses behind a program's own answer."""

from __future__ import annotations

import click

# For `shell_complete=`: the shell's own completion of files.
files = click.Path().shell_complete
