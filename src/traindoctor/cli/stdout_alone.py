"""`--json -`: standard output has the JSON and nothing else."""

import os
import sys
from typing import IO


def stdout_for_json() -> IO[str]:
    """Gives what is standard output now. From here on, whatever the process or a child of it prints there goes to
    standard error, to the end of the process: exit handlers print as well."""
    try:
        if sys.stdout.fileno() != 1:
            return sys.stdout
        sys.stdout.flush()
        kept = os.dup(1)
        os.dup2(2, 1)
    except (OSError, ValueError, AttributeError):  # closed, or not a file
        return sys.stdout
    return os.fdopen(kept, "w", encoding="utf-8")
