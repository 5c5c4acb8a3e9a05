"""What people do after a verdict: commands to copy, each on a line of its own."""

import os
import shlex
from pathlib import Path

from traindoctor.diagnosis import Diagnosis
from traindoctor.diagnosis.verdict import RUN
from traindoctor.report.terminal import INDENT, command_lines

# In the folder of a run: the change that the verdict offers.
FIX_FILE = "fix.diff"


def next_steps(
    diagnosis: Diagnosis,
    run: Path | None = None,
    *,
    earlier: Path | None = None,
    more: tuple[str, ...] = (),
) -> tuple[str, ...]:
    """`run`: where the record lies; `earlier`: the last run of the same script; `more`: what the command itself adds."""
    commands = []
    if diagnosis.causes:
        commands.append(f"traindoctor explain {diagnosis.causes[0].finding.cause}")
    if run is not None:
        here = shown(run)
        if diagnosis.reproduce and any(cause.fix for cause in diagnosis.causes):
            again = diagnosis.reproduce.removeprefix(RUN)
            commands.append(f"{RUN}--verify-fix {here}/{FIX_FILE} {again}")
        commands += [f"traindoctor ui {here}"] if list(run.glob("record-*.sqlite")) else []
        commands.append(f"traindoctor report {here}")
        if earlier is not None:
            commands.append(f"traindoctor compare {shown(earlier)} {here}")
    return (*commands, *more)


def text(commands: tuple[str, ...], width: int) -> str:
    """'  next       traindoctor explain ...', the others below it; '' for none."""
    lines = [line for one in commands for line in command_lines(one, width, INDENT)]
    if not lines:
        return ""
    first = f"  {'next':<10} {lines[0][len(INDENT) :]}"
    return "".join(f"{line}\n" for line in (first, *lines[1:]))


def shown(path: Path) -> str:
    """The shorter of its names, as a shell takes it."""
    return shlex.quote(min(str(path), os.path.relpath(path), key=len))
