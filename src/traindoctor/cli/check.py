"""traindoctor check: the checklist before the training, run by the machine."""

from __future__ import annotations

import ast
import runpy
import shlex
import sys
from dataclasses import replace
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import click

from traindoctor.cli.completion import files, json_option
from traindoctor.errors import TraindoctorError

# Operations of one step that two CPU cores make in about a second; under so few rows nothing varies over a batch.
STEP_OPERATIONS = 4e10
FEWEST_ROWS = 4

if TYPE_CHECKING:
    from traindoctor.checkup import Checkup
    from traindoctor.lm.config import RunConfig


@click.command(
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
)
@json_option(
    "Also write the verdict as JSON; - for standard output (the script's own goes to standard error)."
)
@click.option(
    "--data",
    "data",
    multiple=True,
    metavar="PATH",
    shell_complete=files,
    help="Check traindoctor's own trainer on this text; more settings as for `traindoctor train`.",
)
@click.option(
    "--seconds",
    type=click.FloatRange(min=1.0),
    default=40.0,
    show_default=True,
    help="Time for the tests, on top of the first steps themselves.",
)
@click.option(
    "--each-module",
    "layers",
    is_flag=True,
    help="Also test every module alone by finite differences, on its real inputs (up to a minute more).",
)
@click.argument("target", required=False, metavar="[SCRIPT.PY | FILE.PY]", shell_complete=files)
@click.argument(
    "arguments", nargs=-1, type=click.UNPROCESSED, metavar="[ARGS]...", shell_complete=files
)
def command(
    json_file: str | None,
    data: tuple[str, ...],
    seconds: float,
    layers: bool,
    target: str | None,
    arguments: tuple[str, ...],
) -> int:
    """Examine model, loss, data and optimizer before training.

    \b
    traindoctor check train.py --its --args  a script: runs its first steps only
    traindoctor check file.py                a file with patient(), see below
    traindoctor check --data my.txt ...      with the options of `train`
    traindoctor check --preset demo          the same on the embedded text

    patient() returns `model, batches, loss_fn, optimizer`; `loss_fn(model, batch)` is a scalar.

    Exit status: 0 healthy, 1 sick, 2 wrong use, 3 inconclusive.
    """
    from traindoctor.cli.stdout_alone import stdout_for_json

    json_to = stdout_for_json() if json_file == "-" else json_file
    if data or (target is not None and target.startswith("-")):
        # Everything that is no option of ours is the trainer's.
        extra = ([target] if target else []) + list(arguments)
        return tell(of_trainer(data, extra, seconds, layers), json_to)
    if target is None:
        raise TraindoctorError(
            "check needs a script, a file with a patient() function, or --data PATH"
        )
    path = Path(target)
    if not path.is_file():
        raise TraindoctorError(f"there is no file {target!r}; give a Python script")
    if defines_patient(path):
        return tell(of_patient(path, arguments, seconds, layers), json_to)
    from traindoctor.diagnosis.verdict import RUN

    found = of_script(target, arguments, seconds, layers)
    return tell(found, json_to, f"{RUN}{shlex.join([target, *arguments])}")


def tell(found: Checkup, json_to: str | IO[str] | None, whole: str | None = None) -> int:
    """Prints table and verdict, or writes the JSON alone to the stream; gives the exit status. `whole`: the command for
    the whole run."""
    from traindoctor.cli.diagnose import STATUS
    from traindoctor.record import Record
    from traindoctor.report import checklist, first_rows, next_steps, terminal
    from traindoctor.report import json as json_report

    table = checklist.lines(found.diagnosis, found.asked, found.exams, found.unmade)
    if json_to is not None:
        rows = [line.as_dict() for line in table]
        json_report.write(found.diagnosis, json_to, exams=rows)
    if json_to is None or isinstance(json_to, str):
        width = terminal.width_of(sys.stdout)
        click.echo(checklist.report(found.diagnosis, found.asked, table, width=width))
        first = first_rows.report(found.exams, found.decode, width=width)
        if first:
            click.echo(first)
        terminal.show(found.diagnosis, sys.stdout, Record(facts={"script.text": found.script}))
        more = (whole,) if whole else ()
        commands = next_steps.next_steps(found.diagnosis, more=more)
        click.echo(next_steps.text(commands, width), nl=False)
    return STATUS[found.diagnosis.verdict]


def defines_patient(path: Path) -> bool:
    """Whether the file defines patient() at its top; it is read, not run."""
    try:
        tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError) as error:
        raise TraindoctorError(f"{path} is not valid Python: {error}") from None
    return any(isinstance(node, ast.FunctionDef) and node.name == "patient" for node in tree.body)


def of_patient(path: Path, arguments: tuple[str, ...], seconds: float, layers: bool) -> Checkup:
    from traindoctor.checkup import checkup
    from traindoctor.report import first_rows

    sys.path.insert(0, str(path.resolve().parent))
    sys.argv = [str(path), *arguments]
    names = runpy.run_path(str(path))
    made: Any = names["patient"]()
    parts = ("model", "batches", "loss_fn", "optimizer")
    if isinstance(made, dict):
        lacking = [part for part in parts if part not in made]
        if lacking:
            raise TraindoctorError(f"patient() returned a dict without {', '.join(lacking)}")
        made = tuple(made[part] for part in parts)
    if not isinstance(made, tuple) or len(made) != len(parts):
        what = type(made).__name__ + (f" of {len(made)}" if isinstance(made, tuple) else "")
        raise TraindoctorError(f"patient() must return ({', '.join(parts)}), it returned {what}")
    return replace(
        checkup(*made, seconds=seconds, layers=layers), decode=first_rows.find_decoder(names)
    )


def of_script(target: str, arguments: tuple[str, ...], seconds: float, layers: bool) -> Checkup:
    """Runs the script to its first steps; the doctor stops it and examines."""
    import shutil
    import tempfile

    from traindoctor.capture import arming, runner
    from traindoctor.checkup import STEPS, examining, judged
    from traindoctor.cli.run import end_the_doctor
    from traindoctor.report import first_rows

    folder = Path(tempfile.mkdtemp(prefix="traindoctor-check-"))
    settings = {
        "out": str(folder),
        "budget": 1.0,
        "replay": True,
        "script": target,
        "argv": list(arguments),
        "started": "traindoctor.doctor:attend",
        "stop_after": STEPS,
        "quiet": True,
        **examining(seconds, layers=layers),
    }

    try:
        arming.export(settings)
        arming.arm(settings)
        status = runner.run_script(target, arguments, end_the_doctor)
        if status != 0 and not list(folder.glob("record-*.sqlite")):
            how = runner.error_said or f"status {status}"
            raise TraindoctorError(f"{target} ended with {how} before its first step")
        decode = first_rows.find_decoder(vars(sys.modules["__main__"]))
        return replace(judged(folder), decode=decode)
    finally:
        arming.disarm()
        shutil.rmtree(folder, ignore_errors=True)


def with_fewer_rows(config: RunConfig) -> RunConfig:
    """A large model is examined on fewer rows per step: the same answers in a minute instead of many."""
    model, batch = config.model, config.train.batch
    # Forward and backward: six operations per weight and token, 12 width^2 weights per layer.
    per_row = 6.0 * 12 * model.layers * model.width**2 * model.block
    rows = max(FEWEST_ROWS, int(STEP_OPERATIONS / per_row))
    if rows >= batch:
        return config
    click.echo(f"the first steps have {rows} rows here instead of {batch}, to save time", err=True)
    return replace(config, train=replace(config.train, batch=rows))


def of_trainer(data: tuple[str, ...], extra: list[str], seconds: float, layers: bool) -> Checkup:
    """The first steps of `traindoctor train` with these settings, in a folder that is removed."""
    import tempfile

    from traindoctor.checkup import examined
    from traindoctor.cli import train as trainer
    from traindoctor.lm.callbacks import Callbacks
    from traindoctor.lm.loop import train
    from traindoctor.lm.sources import resolve
    from traindoctor.lm.tokenizer import load_tokenizer

    settings = [*(item for path in data for item in ("--data", path)), *extra]
    try:
        given = dict(trainer.command.make_context("traindoctor check", settings).params)
    except click.NoSuchOption as error:
        from traindoctor.cli.suggestions import unknown_option

        raise unknown_option(error, ("--seconds", "--each-module", "--json")) from None
    for name in ("out", "resume", "overwrite", "ui", "board"):
        if given.pop(name):
            raise TraindoctorError(
                f"check writes no run: leave --{name} away, or use traindoctor train"
            )
    for name in ("doctor", "quiet", "json_file"):
        given.pop(name)
    preset, file = given.pop("preset"), given.pop("file")
    chosen = {name: value for name, value in given.items() if value not in (None, ())}
    config = with_fewer_rows(resolve(preset=preset, file=file, given=chosen))
    with tempfile.TemporaryDirectory(prefix="traindoctor-check-") as folder:
        # The same loss as with a doctor: one whose scores can be seen.
        callbacks = Callbacks(needs_logits=True)
        run = Path(folder) / "run"
        found = examined(lambda: train(run, config, callbacks), seconds=seconds, layers=layers)
        return replace(found, decode=load_tokenizer(run / "tokenizer.json").decode)
