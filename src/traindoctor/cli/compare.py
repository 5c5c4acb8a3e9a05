"""traindoctor compare: where do two implementations part ways?"""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import click

from traindoctor.cli.completion import files, json_option
from traindoctor.errors import TraindoctorError
from traindoctor.plain_files import is_there

if TYPE_CHECKING:
    from traindoctor.compare.answer import Answer
    from traindoctor.tracing.patient import PatientSide
    from traindoctor.tracing.script import ScriptSide

# What `diagnose` reads too.
RECORDS = {".sqlite", ".csv", ".json", ".jsonl"}
STATUS = {"equal": 0, "different": 1, "inconclusive": 3}


class Compare(click.Command):
    """A side may begin with -m, which is no option of ours."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        return super().parse_args(ctx, [f" {a}" if a.startswith("-m ") else a for a in args])


@click.command(cls=Compare)
@json_option(
    "Also write the answer as JSON; - for standard output (what A and B print goes to standard error)."
)
@click.option(
    "--report",
    "report_file",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Also write a page with the picture of the error through the layers (.html).",
)
@click.option(
    "--map",
    "map_file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    shell_complete=files,
    help="JSON: name in B -> name in A, a list of names in A that stand side by side, or null.",
)
@click.option(
    "--steps",
    type=click.IntRange(1, 20),
    default=3,
    show_default=True,
    help="Training steps that are compared.",
)
@click.option(
    "--draws",
    type=click.IntRange(1, 20),
    default=3,
    show_default=True,
    help="Perturbed runs of A that the tolerance is measured on.",
)
@click.argument("a", shell_complete=files)
@click.argument("b", shell_complete=files)
def command(
    json_file: str | None,
    report_file: Path | None,
    map_file: Path | None,
    steps: int,
    draws: int,
    a: str,
    b: str,
) -> int:
    """Find the first tensor in which two implementations differ, beyond what rounding explains.

    \b
    traindoctor compare ref.py:make mine.py:make   two functions
    traindoctor compare ref.py:make dump/          a dump, see docs/dump-format.md
    traindoctor compare good/ dump/                two dumps
    traindoctor compare train.py "torchrun --nproc-per-node 2 train.py"   scripts
    traindoctor compare runs/before runs/after     two runs: did the change help?

    A is trusted. A function returns a model, batches, a loss function and an optimizer. Both are given the same weights and batches; dropout modules are switched off. Forward, loss,
    backward and update are walked in order; the answer names the first difference and, where a simple one fits, its kind.

    Exit status: 0 equal, 1 different, 2 wrong use, 3 inconclusive.
    """
    from traindoctor.cli.stdout_alone import stdout_for_json

    json_to = stdout_for_json() if json_file == "-" else json_file
    if report_file is not None and report_file.suffix != ".html":
        raise TraindoctorError(
            f"--report writes a page: give a name that ends in .html, not {report_file}"
        )
    if is_run(a) or is_run(b):
        return of_runs(a, b, json_to, report_file)
    from traindoctor import comparison

    words = ["traindoctor", "compare", a, b, "--steps", str(steps)]
    words += ["--map", str(map_file)] if map_file else []
    options = comparison.Options(
        steps=steps,
        draws=draws,
        given=comparison.read_map(map_file) if map_file else None,
        reproduce=shlex.join(words),
    )
    found = comparison.compare_sides(side(a), side(b), options)
    if json_to is not None:
        write_json(found.as_dict(), json_to)
    if report_file is not None:
        from traindoctor.compare.page import write_page

        write_page(found, report_file)
    if json_to is None or isinstance(json_to, str):
        tell(found)
    return STATUS[found.verdict]


def is_run(text: str) -> bool:
    """Whether a side is a recorded run, or a log of another tool."""
    from traindoctor.record.stored_ranks import record_files

    path = Path(text)
    if not is_there(path):
        return False
    return bool(record_files(path)) if path.is_dir() else path.suffix in RECORDS


def of_runs(a: str, b: str, json_to: str | IO[str] | None, report_file: Path | None) -> int:
    """Two recorded runs: verdicts, tests, curves, settings, environment and the scripts side by side."""
    from traindoctor.cli.diagnose import read
    from traindoctor.compare.runs import compare_runs
    from traindoctor.report import terminal

    for text, other in ((a, b), (b, a)):
        if not is_run(text):
            raise TraindoctorError(
                f"{other} is a recorded run and {text} is not: give two recorded runs, or two sides to run"
            )
    if report_file is not None:
        raise TraindoctorError(
            "--report draws tensors, and a record has none: `traindoctor ui` shows the curves of two runs"
        )
    found = compare_runs(read(Path(a)), read(Path(b)), titles=(a, b))
    if json_to is not None:
        write_json(found.as_dict(), json_to)
    if json_to is None or isinstance(json_to, str):
        for line in found.lines(terminal.width_of(sys.stdout)):
            click.echo(line)
    return int(found.different)


def side(text: str) -> PatientSide | ScriptSide | Path:
    """What a user means by A or B."""
    from traindoctor.compare.dump import is_dump

    path = Path(text)
    if text and is_there(path) and path.is_dir():
        if is_dump(path):
            return path
        raise TraindoctorError(
            f"{text} is neither a dump folder (it has no index.jsonl) nor a recorded run"
        )
    file, colon, function = text.rpartition(":")
    # The arguments of a script may end so too.
    if colon and file.endswith(".py") and (" " not in file or is_there(Path(file))):
        if not is_there(Path(file)):
            raise TraindoctorError(f"there is no file {file!r}")
        from traindoctor.tracing.patient import PatientSide

        return PatientSide(Path(file), function)
    from traindoctor.tracing.script import ScriptSide

    return ScriptSide.of(text.strip())


def tell(found: Answer) -> None:
    """On the terminal."""
    from traindoctor.compare.table import lines
    from traindoctor.report import terminal

    for line in lines(found, width=terminal.width_of(sys.stdout)):
        click.echo(line)


def write_json(data: dict[str, Any], file: str | IO[str]) -> None:
    text = json.dumps(data, indent=1, allow_nan=False)
    if not isinstance(file, str):
        click.echo(text, file=file)
        return
    try:
        Path(file).write_text(text + "\n", encoding="utf-8")
    except OSError as error:
        raise TraindoctorError(f"cannot write {file}: {error.strerror}") from None
