"""`traindoctor train`: from text files to a trained language model, in one command."""

import contextlib
import os
import shutil
import time
import typing
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any, Literal

import click

from traindoctor.cli.completion import files, json_option
from traindoctor.cli.stdout_alone import stdout_for_json
from traindoctor.errors import CheckpointError, ConfigError, TraindoctorError
from traindoctor.integrations.board_beside import BOARDS, BoardBeside, require
from traindoctor.lm.config import RunConfig
from traindoctor.lm.presets import PRESETS
from traindoctor.lm.sources import later_wins, load_config, read_toml, resolve, resumed, settings

SECTIONS = {"data": "Text", "model": "Model", "train": "Training"}
ALIASES = {"lr": ["--learning-rate"]}
# What a run consists of; --overwrite removes these and nothing else.
PARTS = ("config.json", "tokenizer.json", "metrics.csv", "data", "checkpoints", "samples")
# Exams that are still wanted when training is over; the user waits for them.
AFTER_SECONDS = 5.0


class SectionedCommand(click.Command):
    """--help with the settings under the headings of SECTIONS."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        places = {setting.name: SECTIONS[setting.section] for setting in settings()}
        rows: dict[str, list[tuple[str, str]]] = {name: [] for name in ("Run", *SECTIONS.values())}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is not None:
                rows[places.get(parameter.name or "", "Run")].append(record)
        for title, records in rows.items():
            with formatter.section(title):
                formatter.write_dl(records)
        with formatter.section("Presets"):
            formatter.write_dl([(name, text) for name, (text, _) in PRESETS.items()])


def setting_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """One option per setting; None where the user says nothing, so that presets and files can speak."""
    for setting in reversed(settings()):
        option = f"--{setting.name.replace('_', '-')}"
        names = [option, *ALIASES.get(setting.name, []), setting.name]
        default = "" if setting.default in ((), "", False, 0, 0.0) else f"  [{setting.default}]"
        extra: dict[str, Any] = {"type": setting.kind}
        if setting.kind is bool:
            names[0] = f"{option}/--no-{option[2:]}"
            extra = {}
            default = "  [on]" if setting.default else ""
        elif typing.get_origin(setting.kind) is Literal:
            extra = {"type": click.Choice(typing.get_args(setting.kind))}
        elif setting.name == "data":
            extra = {"multiple": True, "metavar": "PATH", "shell_complete": files}
        help_text = setting.text[0].upper() + setting.text[1:] + "." + default
        function = click.option(*names, default=None, help=help_text, **extra)(function)
    return function


@click.command(cls=SectionedCommand, context_settings={"max_content_width": 110})
@click.option("--preset", metavar="NAME", help="Settings by name (list below).")
@click.option(
    "--config", "file", type=click.Path(path_type=Path), metavar="FILE", help="Settings in TOML."
)
@click.option("--out", type=click.Path(path_type=Path), metavar="DIR", help="Folder of the run.")
@click.option(
    "--resume",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Go on with a run from its last checkpoint.",
)
@click.option("--overwrite", is_flag=True, help="Replace a run that is already in --out.")
@click.option(
    "--doctor/--no-doctor", default=True, help="Watch the run and end with a verdict.  [on]"
)
@click.option("--ui", is_flag=True, help="Show the run in the browser while it goes.")
@click.option(
    "--board",
    type=click.Choice(BOARDS),
    help="Send the health measures and the verdict to a board as the run goes on.",
)
@click.option("--quiet", is_flag=True, help="Print only how it ends.")
@json_option("Write the verdict as JSON; - for standard output (all else goes to standard error).")
@setting_options
def command(
    preset: str | None,
    file: Path | None,
    out: Path | None,
    resume: Path | None,
    overwrite: bool,
    doctor: bool,
    ui: bool,
    board: str | None,
    quiet: bool,
    json_file: str | None,
    **options: Any,
) -> int:
    """Train a transformer language model on your text.

    \b
    traindoctor train --data my.txt
    traindoctor train --data books/ --tokenizer bpe --preset base
    traindoctor train --resume runs/my --steps 10000
    torchrun --nproc-per-node 2 -m traindoctor train --data my.txt --out runs/two

    Settings come from the preset, then the TOML file, then the options; all are kept in the run's config.json.
    """
    given = {name: value for name, value in options.items() if value not in (None, ())}
    if resume is not None:
        run, config = resume, resume_config(resume, preset, file, out, given)
    else:
        config = resolve(preset=preset, file=file, given=given)
        run = choose_folder(out, config)
        refuse_to_overwrite(run, overwrite=overwrite)
    first_rank = os.environ.get("RANK", "0") == "0"
    if board is not None and not doctor:
        raise ConfigError("--board shows what the doctor measures: leave --no-doctor away")
    if json_file is not None and not doctor:
        raise ConfigError("--json writes the doctor's verdict: leave --no-doctor away")
    if board is not None:
        require(board)
    json_to = stdout_for_json() if json_file == "-" else json_file
    if ui and first_rank:
        from traindoctor.cli.live import open_page

        open_page(run, quiet=quiet)
    with contextlib.ExitStack() as stack:
        replaces = resume is None and overwrite and run.is_dir() and first_rank
        end_old = stack.enter_context(replaced(run)) if replaces else None

        def begun() -> None:
            """All that could be wrong with the input is not: the old run may go, a board may be told."""
            if end_old is not None:
                end_old()
            if board is not None and first_rank:
                beside = BoardBeside(board, run)
                stack.callback(lambda: click.echo(beside.finish(), err=quiet))

        return train_and_tell(run, config, begun, doctor=doctor, quiet=quiet, json_to=json_to)


def train_and_tell(
    run: Path,
    config: RunConfig,
    begun: Callable[[], None],
    *,
    doctor: bool,
    quiet: bool,
    json_to: str | IO[str] | None = None,
) -> int:
    """Trains with a display on rank 0; the doctor joins when model and optimizer are there."""
    import torch

    from traindoctor.cli.train_display import Display
    from traindoctor.lm.callbacks import Callbacks
    from traindoctor.lm.loop import train

    display = Display(run, config, quiet=quiet, silent=os.environ.get("RANK", "0") != "0")
    with contextlib.ExitStack() as attached:

        def attach_doctor(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
            """The one place where the recorder and its doctor meet the trainer."""
            begun()
            if doctor:
                from traindoctor import doctor as doctors

                # Under `traindoctor run` one is here already; it speaks when the script has ended.
                display.doctor = doctors.present() or attached.enter_context(
                    doctors.watch(model, optimizer, out=run, after=AFTER_SECONDS, quiet=quiet)
                )

        outcome = train(
            run,
            config,
            Callbacks(
                on_preparing=display.preparing,
                on_plan=display.plan,
                on_ready=attach_doctor,
                on_progress=display.progress,
                on_validation=display.validation,
                on_interrupt=display.interrupted,
                on_end=display.end,
                needs_logits=doctor,
            ),
        )
    display.after(outcome)
    if json_to is not None and not display.silent and display.verdict is not None:
        from traindoctor.report import json as json_report

        json_report.write(display.verdict, json_to)
    return 130 if outcome.reason == "interrupted" else 0


def resume_config(
    run: Path, preset: str | None, file: Path | None, out: Path | None, given: dict[str, Any]
) -> RunConfig:
    """The settings of a run that goes on; what would make it another run is refused."""
    if out is not None and out.resolve() != run.resolve():
        raise ConfigError("--resume goes on in its own folder: leave --out away")
    if not run.is_dir():
        raise CheckpointError(f"there is no run folder {run} to resume")
    stored = load_config(run / "config.json")
    if file is not None:
        from_file = read_toml(file)
        from_file.pop("preset", None)
        given = later_wins(from_file, given)
    if preset is not None and preset != stored.preset:
        raise ConfigError(
            f"the run was made with --preset {stored.preset}, not {preset}: resume without it"
        )
    return resumed(stored, given)


def choose_folder(out: Path | None, config: RunConfig) -> Path:
    if out is not None:
        return out
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise ConfigError("several processes need one folder: give it with --out DIR")
    name = Path(config.data.data[0]).stem if config.data.data else config.preset
    return Path("runs") / f"{name if name != '-' else 'stdin'}-{time.strftime('%Y%m%d-%H%M%S')}"


def refuse_to_overwrite(run: Path, *, overwrite: bool) -> None:
    """A run is never written over unasked."""
    if run.exists() and not run.is_dir():
        raise ConfigError(f"--out {run} is a file: give a folder")
    if (run / "config.json").exists() and not overwrite and os.environ.get("RANK", "0") == "0":
        raise ConfigError(
            f"{run} already holds a run: go on with --resume {run}, replace it with --overwrite, "
            "or give another --out"
        )


@contextlib.contextmanager
def replaced(run: Path) -> Iterator[Callable[[], None]]:
    """Puts an old run aside. What is given ends it for good; without that call it comes back."""
    aside = run / ".replaced"

    def move(source: Path, target: Path) -> None:
        target.mkdir(parents=True, exist_ok=True)
        for part in PARTS:
            if (source / part).exists():
                remove(target / part)
                (source / part).rename(target / part)

    try:
        move(run, aside)
    except OSError as error:
        raise TraindoctorError(f"cannot replace the run in {run}: {error.strerror}") from error
    try:
        yield lambda: remove(aside)
    finally:
        if aside.is_dir():
            for part in PARTS:
                remove(run / part)
            move(aside, run)
            remove(aside)


def remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
