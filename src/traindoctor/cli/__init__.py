"""The command line. A command's module is imported when the command is used, never for --help."""

import atexit
import importlib
import os
import sys
from typing import NoReturn

import click

from traindoctor import __version__
from traindoctor.errors import TraindoctorError

# command -> (module of traindoctor.cli, one line for the list)
COMMANDS: dict[str, tuple[str, str]] = {
    "train": ("train", "Train a transformer language model on your text."),
    "generate": ("generate", "Generate text with a trained run."),
    "run": ("run", "Run a training script unchanged, watch it, and say why it does not learn."),
    "check": ("check", "Examine model, loss, data and optimizer before training."),
    "gradcheck": ("gradcheck", "Test a hand-written gradient against its forward."),
    "compare": ("compare", "Find the first tensor in which two implementations differ."),
    "diagnose": ("diagnose", "Judge a recorded run or the log of another tool."),
    "explain": ("explain", "Print the page of a cause."),
    "causes": ("causes", "List the causes that can be told apart."),
    "precision": ("precision", "Measure what summation and dtype do to a softmax and its loss."),
    "report": ("report", "Write the report of a run as one HTML page, Markdown or JSON."),
    "ui": ("ui", "Look at runs in the browser, live."),
    "runs": ("runs", "List recorded runs."),
    "export": ("export", "Export a run: Hugging Face folder, CSV or Parquet."),
    "import": ("import_", "Turn the log of another tool into a recorded run."),
    "mcp": ("mcp", "Serve these commands to coding agents (Model Context Protocol, stdio)."),
}


# click makes the completion; its scripts are one line each in the shell's own start-up file.
COMPLETION = """\b
Tab completion, one line for your shell's start-up file:
  bash  eval "$(_TRAINDOCTOR_COMPLETE=bash_source traindoctor)"
  zsh   eval "$(_TRAINDOCTOR_COMPLETE=zsh_source traindoctor)"
  fish  _TRAINDOCTOR_COMPLETE=fish_source traindoctor | source"""


class LazyGroup(click.Group):
    """Lists the table; imports one module when its command is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module = importlib.import_module(f"traindoctor.cli.{COMMANDS[cmd_name][0]}")
        command: click.Command = module.command
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            from traindoctor.cli.suggestions import unknown_command

            raise unknown_command(ctx, args[0], COMMANDS)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, line) in COMMANDS.items()])


@click.group(
    cls=LazyGroup,
    epilog=COMPLETION,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(__version__, prog_name="traindoctor")
def cli() -> None:
    """traindoctor finds out why a transformer is not learning.

    Start with `traindoctor run train.py`: your script runs unchanged and ends with a verdict.
    """


def main() -> None:
    """Entry point: the user's mistakes become one sentence and exit status 2."""
    try:
        status = cli.main(prog_name="traindoctor", standalone_mode=False)
        _leave(status if isinstance(status, int) else 0)
    except click.exceptions.Abort:
        click.echo("stopped", err=True)
        _leave(130)
    except click.NoSuchOption as error:
        from traindoctor.cli.suggestions import unknown_option

        unknown_option(error).show()
        _leave(2)
    except click.ClickException as error:
        error.show()
        _leave(2)
    except TraindoctorError as error:
        click.echo(f"traindoctor: {error}", err=True)
        _leave(2)
    except BrokenPipeError:
        sys.exit(141)


def _leave(status: int) -> NoReturn:
    """Ends the process. After a run of several processes Python is not torn down: torch's process groups have
    threads that outlive them, and one that asks for Python while it is torn down aborts the process."""
    distributed = sys.modules.get("traindoctor.lm.distributed")
    if distributed is None or not distributed.threads_remain:
        sys.exit(status)
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)
