"""`traindoctor run script.py`: the script runs as Python would run it, is watched, and ends with a verdict."""

from __future__ import annotations

import os
import shlex
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import click

from traindoctor.capture import launchers
from traindoctor.cli.completion import files, json_option
from traindoctor.cli.sizes import Bytes
from traindoctor.errors import RecordError, TraindoctorError
from traindoctor.integrations.board_beside import BOARDS, BoardBeside, require

if TYPE_CHECKING:
    from traindoctor.diagnosis import Diagnosis

# Where the JSON goes.
Target = Path | IO[str] | None
# Ranks end one after the other; the one that tells the verdict waits so long for the others' records.
RANKS_SECONDS = 10.0
# A process that lives writes every half second.
WRITES_WITHIN = 2.0


@click.command(
    context_settings={"allow_interspersed_args": False},
)
@click.option(
    "--out",
    metavar="DIR",
    shell_complete=files,
    help="Folder of the run (default: a new one under runs/).",
)
@json_option(
    "Write the verdict as JSON; - for standard output (the script's own goes to standard error)."
)
@click.option(
    "--budget",
    type=click.FloatRange(min=0.0, max=100.0),
    default=2.0,
    show_default=True,
    metavar="PERCENT",
    help="What watching may cost, in percent of the step time.",
)
@click.option(
    "--after",
    type=click.FloatRange(min=0.0),
    default=30.0,
    show_default=True,
    metavar="SECONDS",
    help="Time for tests that are still open when the script has ended.",
)
@click.option(
    "--memory",
    type=Bytes(),
    metavar="SIZE",
    help="Extra memory watching may use, as 512M or 2G (default: 10 % of the process, at least 256M).",
)
@click.option("--strict", is_flag=True, help="Exit with 1 when the run is sick.")
@click.option("--stop-when-sick", is_flag=True, help="End the script once a cause is confirmed.")
@click.option("--no-replay", is_flag=True, help="Never repeat a step: less memory, fewer tests.")
@click.option(
    "--ui", is_flag=True, help="Show the run live in the browser; at a terminal, until Ctrl-C."
)
@click.option(
    "--board",
    type=click.Choice(BOARDS),
    help="Send the health measures and the verdict to a board as the run goes on.",
)
@click.option(
    "--if-trained", is_flag=True, help="Say nothing, and keep nothing, where nothing was trained."
)
@click.option("--quiet", is_flag=True, help="Print nothing but the script's own output.")
@click.option(
    "--verify-fix",
    "patch_file",
    metavar="PATCH",
    shell_complete=files,
    help="Run a copy of the script with this unified diff, and say whether what was broken now holds.",
)
@click.option("-m", "module", is_flag=True, help="Run a module, as python -m does.")
@click.argument("target", metavar="SCRIPT.PY | -m MODULE", shell_complete=files)
@click.argument(
    "arguments", nargs=-1, type=click.UNPROCESSED, metavar="[ARGS]...", shell_complete=files
)
def command(
    out: str | None,
    json_file: str | None,
    budget: float,
    after: float,
    memory: int | None,
    strict: bool,
    stop_when_sick: bool,
    no_replay: bool,
    ui: bool,
    board: str | None,
    if_trained: bool,
    quiet: bool,
    patch_file: str | None,
    module: bool,
    target: str,
    arguments: tuple[str, ...],
) -> int:
    """Run a training script unchanged, watch it, and say why it does not learn.

    Everything after the script's name belongs to the script. The exit status is the script's own.

    With --verify-fix the script itself is not changed; the verdict is that of its patched copy, and it is compared
    with the run without the change.
    """
    from traindoctor.capture import arming, runner
    from traindoctor.capture.folders import new_folder
    from traindoctor.cli import verify
    from traindoctor.cli.live import keep_page, open_page
    from traindoctor.cli.stdout_alone import stdout_for_json

    if patch_file is not None and module:
        raise TraindoctorError("--verify-fix patches a script: give its file instead of -m")
    if patch_file is not None and launchers.world_size() > 1:
        raise TraindoctorError("--verify-fix runs in one process: start it without torchrun")
    name = target.rpartition(".")[2] if module else Path(target).stem
    if board is not None:
        require(board)
    if not module:
        runner.check_script(target)  # before a folder is made for a run that cannot be
    change = None
    if patch_file is not None:
        from traindoctor.cli.patched_script import patched  # brings NumPy in

        change = patched(target, patch_file)
    run = runner.run_module if module else runner.run_script
    json_to = Path(json_file).absolute() if json_file not in (None, "-") else None
    try:
        folder = new_folder(name if change is None else f"{name}-fixed", out)
    except RecordError as error:  # a full or read-only disk: the script can do without us
        if change is not None:
            raise
        arming.say(f"{error}. The script runs without being watched.")
        return run(target, arguments, lambda status: None)
    settings: dict[str, Any] = {
        "out": str(folder),
        "budget": budget / 100,
        "replay": not no_replay,
        "memory": memory,
        "script": target,
        "module": module,
        "argv": list(arguments),
        "started": "traindoctor.doctor:attend",
        "after": after,
        "stop_when_sick": stop_when_sick,
        "quiet": quiet,
        "if_trained": if_trained,
    }
    if change is not None:
        assert patch_file is not None
        copy = change.lay_out(folder)
        settings |= {"script": str(copy), "unpatched": os.path.abspath(target), "typed": target}
        settings["patch"] = patch_file
    if change is not None or os.environ.pop(verify.VARIABLE, ""):
        verify.same_start()
    page = open_page(folder, quiet=quiet) if ui else None
    status, found = watched_run(
        run, settings, board, stdout_for_json() if json_file == "-" else json_to
    )
    if page is not None:
        keep_page(page)
    return 1 if strict and found is not None and found.verdict == "sick" else status


def watched_run(
    run: Callable[..., int], settings: dict[str, Any], board: str | None, json_to: Target
) -> tuple[int, Diagnosis | None]:
    """The script's exit status, and the verdict that was told (by the first rank)."""
    from traindoctor.capture import arming
    from traindoctor.cli import verify
    from traindoctor.cli.live import LiveView

    folder, quiet = Path(settings["out"]), bool(settings["quiet"])
    first_rank = launchers.rank() == 0
    beside = BoardBeside(board, folder) if board is not None and first_rank else None
    arming.export(settings)
    arming.arm(settings)
    view = LiveView(folder, quiet=quiet or not first_rank)
    verdicts: list[Diagnosis] = []

    def finish(status: int | str) -> None:
        view.stop()
        verify.name_the_patch(settings)
        end_the_doctor(status)
        if settings["if_trained"] and not records_of(folder):
            forget(folder)
        elif first_rank:
            verdicts.append(verdict_at_the_end(settings, json_to, status))
        if beside is not None:
            told = beside.finish()
            if not quiet:
                print(f"  {told}", file=sys.stderr)

    status = run(settings["script"], settings["argv"], finish)
    return status, verdicts[0] if verdicts else None


def records_of(folder: Path) -> list[Path]:
    return list(folder.glob("record-*.sqlite"))


def forget(folder: Path) -> None:
    """Nothing was trained: not even an empty folder stays behind."""
    from traindoctor.capture.folders import RUNS

    with suppress(OSError):
        folder.rmdir()
        if folder.parent == RUNS.absolute():
            folder.parent.rmdir()


def end_the_doctor(status: int | str) -> None:
    if "traindoctor.doctor" in sys.modules:
        from traindoctor import doctor

        if doctor.attending is not None:
            doctor.attending.finish(status)


def verdict_at_the_end(
    settings: Mapping[str, Any], json_to: Target, status: int | str
) -> Diagnosis:
    """Where a child of the script was first to train, the script's own record lies beside that one."""
    from traindoctor.capture import arming

    watch = arming.watch
    recorded = watch is not None and watch.has_record
    return verdict(
        watch.out if watch and recorded else Path(settings["out"]),
        json_to,
        quiet=bool(settings["quiet"]),
        status=status,
        unrecorded=watch.unrecorded if watch else None,
        ended_early=watch.record_writer.failed if watch and recorded else None,
        verify=settings if "patch" in settings else None,
        command=command_of(settings),
    )


def verdict(
    folder: Path,
    json_to: Target,
    *,
    quiet: bool,
    status: int | str = 0,
    unrecorded: str | None = None,
    ended_early: str | None = None,
    verify: Mapping[str, Any] | None = None,
    command: str | None = None,
) -> Diagnosis:
    """Judges the record of all ranks, prints to standard error and writes the JSON.

    `unrecorded` says why there is no record: that is told even to those who want no other word of ours. `verify`: the
    settings of a patched run, whose verdict says what the change did. `command`: how to try again where nothing was recorded.
    """
    from traindoctor.capture.arming import say
    from traindoctor.diagnosis import diagnose
    from traindoctor.record import Record, open_record
    from traindoctor.report import json as json_report
    from traindoctor.report.after_run import print_nothing, print_verdict
    from traindoctor.report.next_steps import FIX_FILE

    wait_for_ranks(folder)
    recorded = unrecorded is None and bool(records_of(folder))
    record = open_record(folder) if recorded else Record()
    if recorded and "run.ended" not in record.facts and falls_silent(folder):
        record.facts["run.ended"] = (
            "killed"  # a child that trained, as the workers of Ray are at their end
        )
    diagnosis = diagnose(record, ended_early=ended_early)
    if not recorded:
        reason = unrecorded or why_nothing(status)
        diagnosis = replace(diagnosis, reason=reason, reproduce=command)
    if verify is not None and recorded:
        from traindoctor.cli.verify import with_verification

        try:
            diagnosis = with_verification(diagnosis, folder, verify)
        except TraindoctorError as error:
            diagnosis = replace(diagnosis, notes=(str(error), *diagnosis.notes))
    if (fix := next((cause.fix for cause in diagnosis.causes if cause.fix), None)) is not None:
        (folder / FIX_FILE).write_text(fix, encoding="utf-8")
    if unrecorded is not None:
        say(unrecorded)
    elif recorded and not quiet:
        print_verdict(diagnosis, record, sys.stderr, folder)
        print(f"  recorded in {folder}", file=sys.stderr)
    elif not quiet:
        print_nothing(diagnosis, sys.stderr)
    if json_to is not None:
        json_report.write(diagnosis, json_to)
    return diagnosis


def command_of(settings: Mapping[str, Any]) -> str:
    """How a run was asked for, as a shell takes it."""
    from traindoctor.diagnosis.verdict import RUN
    from traindoctor.record.secrets import redact_arguments

    options = ["--verify-fix", str(settings["patch"])] if "patch" in settings else []
    options += ["-m"] if settings["module"] else []
    script = str(settings.get("typed", settings["script"]))
    return RUN + shlex.join([*options, script, *redact_arguments(settings["argv"])])


def why_nothing(status: int | str) -> str:
    from traindoctor.capture import runner
    from traindoctor.record.secrets import redact_text

    if status in (0, "stopped"):
        return (
            "nothing was trained: the script never called backward() or optimizer.step() "
            "(gradients that torch.func takes are not watched)"
        )
    if isinstance(status, int):
        return f"the script ended with status {status} before training"
    said = redact_text(runner.error_said or status)
    kind, _, text = said.partition(": ")
    return f"the script ended with {kind} before training" + (f": {text}" if text else "")


def wait_for_ranks(folder: Path) -> None:
    """Under torchrun each rank is its own command: give the others a moment to end."""
    world = launchers.world_size()
    if world <= 1:
        return
    from traindoctor.record import StoredRecord

    deadline = time.monotonic() + RANKS_SECONDS
    ended: set[Path] = set()
    while time.monotonic() < deadline:
        for file in set(records_of(folder)) - ended:
            with suppress(RecordError), closing(StoredRecord(file)) as record:
                if "run.ended" in record.facts:
                    ended.add(file)
        if len(ended) >= world:
            return
        time.sleep(0.2)


def falls_silent(folder: Path) -> bool:
    """Whether nobody writes to the record any more: it has no end of its own, and its process may live on or be gone."""
    from traindoctor.record.folders import last_written

    before = last_written(folder)
    deadline = time.monotonic() + WRITES_WITHIN
    while time.monotonic() < deadline:
        if last_written(folder) != before:
            return False
        time.sleep(0.2)
    return True
