"""`traindoctor run script.py`: the script runs as Python would run it, and its run is recorded."""

from __future__ import annotations

import sys
from pathlib import Path

import click


@click.command(
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
)
@click.option("--out", metavar="DIR", help="Folder of the run (default: a new one under runs/).")
@click.option("--json", "json_file", metavar="FILE", help="Write the verdict as JSON.")
@click.option(
    "--budget",
    type=click.FloatRange(min=0.0, max=100.0),
    default=2.0,
    show_default=True,
    metavar="PERCENT",
    help="What watching may cost, in percent of the step time.",
)
@click.option(
    "--after", type=float, metavar="SECONDS", help="Print a first verdict after so many seconds."
)
@click.option("--strict", is_flag=True, help="Exit with 1 when the run is sick.")
@click.option("--stop-when-sick", is_flag=True, help="End the script once a cause is confirmed.")
@click.option("--no-replay", is_flag=True, help="Tape no step: less memory, fewer tests.")
@click.option("--ui", is_flag=True, help="Show the run in the browser while it goes.")
@click.option("--quiet", is_flag=True, help="Print nothing of our own.")
@click.option("-m", "module", is_flag=True, help="Run a module, as python -m does.")
@click.argument("target", metavar="SCRIPT.PY | -m MODULE")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED, metavar="[ARGS]...")
def command(
    out: str | None,
    json_file: str | None,
    budget: float,
    after: float | None,
    strict: bool,
    stop_when_sick: bool,
    no_replay: bool,
    ui: bool,
    quiet: bool,
    module: bool,
    target: str,
    arguments: tuple[str, ...],
) -> int:
    """Run a training script unchanged, watch it, and say why it does not learn.

    Everything after the script's name belongs to the script.
    """
    from traindoctor.capture import arming, runner
    from traindoctor.capture.folders import new_folder

    name = target.rpartition(".")[2] if module else Path(target).stem
    if not module and not Path(target).exists():
        # Before a folder is made for a run that cannot be.
        runner.run_script(target, arguments, lambda status: None)
    folder = new_folder(name, out)
    settings = {
        "out": str(folder),
        "budget": budget / 100,
        "replay": not no_replay,
        "script": target,
        "argv": list(arguments),
    }
    arming.export(settings)
    arming.arm(settings)

    def finish(status: int | str) -> None:
        if arming.watch is not None:
            arming.watch.close(status)
        if not quiet:
            from traindoctor.capture.summary import summary

            print(summary(folder), file=sys.stderr)

    run = runner.run_module if module else runner.run_script
    return run(target, arguments, finish)
