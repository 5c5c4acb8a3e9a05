"""traindoctor check: the checklist before the training, run by the machine."""

from __future__ import annotations

import ast
import runpy
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from traindoctor.errors import TraindoctorError

if TYPE_CHECKING:
    from traindoctor.checkup import Checkup


@click.command(
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
)
@click.option(
    "--json",
    "json_file",
    metavar="FILE",
    help="Also write the verdict as JSON; - for standard output.",
)
@click.option(
    "--data",
    "data",
    multiple=True,
    metavar="PATH",
    help="Check traindoctor's own trainer on this text; more settings as for `traindoctor train`.",
)
@click.option(
    "--seconds",
    type=click.FloatRange(min=1.0),
    default=40.0,
    show_default=True,
    help="Time for the exams after the first steps.",
)
@click.argument("target", required=False, metavar="[SCRIPT.PY | PATIENT.PY]")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED, metavar="[ARGS]...")
def command(
    json_file: str | None,
    data: tuple[str, ...],
    seconds: float,
    target: str | None,
    arguments: tuple[str, ...],
) -> int:
    """Examine model, loss, data and optimizer before training.

    SCRIPT.PY is any training script: it runs to its first steps, is examined and stopped. PATIENT.PY is a file with
    a function `patient()` that gives `model, batches, loss_fn, optimizer`, with `loss_fn(model, batch)` a scalar.
    With --data the settings of `traindoctor train` are examined.

    Exit status: 0 healthy, 1 sick, 2 wrong use, 3 inconclusive.
    """
    if data:
        # Everything that is no option of ours is the trainer's.
        extra = ([target] if target else []) + list(arguments)
        return tell(of_trainer(data, extra, seconds), json_file)
    if target is None:
        raise TraindoctorError(
            "check needs a script, a file with a patient() function, or --data PATH"
        )
    path = Path(target)
    if not path.is_file():
        raise TraindoctorError(f"there is no file {target!r}; give a Python script")
    if defines_patient(path):
        return tell(of_patient(path, seconds), json_file)
    return tell(of_script(target, arguments, seconds), json_file)


def tell(found: Checkup, json_file: str | None) -> int:
    """Prints table and verdict, writes the JSON, gives the exit status."""
    from traindoctor.cli.diagnose import STATUS
    from traindoctor.report import checklist, terminal
    from traindoctor.report import json as json_report

    if json_file is not None:
        json_report.write(found.diagnosis, json_file)
    if json_file != "-":
        width = terminal.width_of(sys.stdout)
        click.echo(checklist.report(found.diagnosis, found.exam_of, width=width))
        terminal.show(found.diagnosis, sys.stdout)
    return STATUS[found.diagnosis.verdict]


def defines_patient(path: Path) -> bool:
    """Whether the file defines patient() at its top; it is read, not run."""
    try:
        tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError) as error:
        raise TraindoctorError(f"{path} is no Python: {error}") from None
    return any(isinstance(node, ast.FunctionDef) and node.name == "patient" for node in tree.body)


def of_patient(path: Path, seconds: float) -> Checkup:
    from traindoctor.checkup import checkup

    sys.path.insert(0, str(path.resolve().parent))
    made: Any = runpy.run_path(str(path))["patient"]()
    names = ("model", "batches", "loss_fn", "optimizer")
    if isinstance(made, dict):
        lacking = [name for name in names if name not in made]
        if lacking:
            raise TraindoctorError(f"patient() gave a dict without {', '.join(lacking)}")
        made = tuple(made[name] for name in names)
    if not isinstance(made, tuple) or len(made) != len(names):
        raise TraindoctorError(
            f"patient() must give ({', '.join(names)}), it gave {type(made).__name__}"
        )
    return checkup(*made, seconds=seconds)


def of_script(target: str, arguments: tuple[str, ...], seconds: float) -> Checkup:
    """Runs the script to its first steps; the doctor stops it and examines."""
    import shutil
    import tempfile

    from traindoctor.capture import arming, runner
    from traindoctor.checkup import STEPS, Checkup, exam_of
    from traindoctor.diagnosis import diagnose
    from traindoctor.record import Record, open_record

    folder = Path(tempfile.mkdtemp(prefix="traindoctor-check-"))
    settings = {
        "out": str(folder),
        "budget": 1.0,
        "replay": True,
        "script": target,
        "argv": list(arguments),
        "started": "traindoctor.doctor:attend",
        "after": seconds,
        "stop_after": STEPS,
        "quiet": True,
    }
    asked: dict[str, set[str]] = {}

    def finish(status: int | str) -> None:
        from traindoctor import doctor

        if doctor.attending is not None:
            doctor.attending.finish(status)
            asked.update(doctor.attending.asked)

    try:
        arming.export(settings)
        arming.arm(settings)
        status = runner.run_script(target, arguments, finish)
        recorded = bool(list(folder.glob("record-*.sqlite")))
        if not recorded and status != 0:
            raise TraindoctorError(f"{target} ended with status {status} before its first step")
        diagnosis = diagnose(open_record(folder) if recorded else Record())
        return Checkup(diagnosis, exam_of(asked))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def of_trainer(data: tuple[str, ...], extra: list[str], seconds: float) -> Checkup:
    """The first steps of `traindoctor train` with these settings, in a folder that is removed."""
    import tempfile

    from traindoctor.checkup import STEPS, examined
    from traindoctor.cli import train as trainer

    with tempfile.TemporaryDirectory(prefix="traindoctor-check-") as folder:
        settings = [*(item for path in data for item in ("--data", path)), *extra]
        settings += ["--steps", str(STEPS), "--out", str(Path(folder) / "run")]

        def run() -> None:
            trainer.command.main(settings, standalone_mode=False)

        return examined(run, seconds=seconds)
