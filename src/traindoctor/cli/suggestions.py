"""Did you mean: the nearest commands and options to one that does not exist."""

import difflib
from collections.abc import Iterable

import click

# `--bugdet` is this near to `--budget`; `--out` is not.
NEAR = 0.7
MOST = 3


def nearest(name: str, known: Iterable[str]) -> list[str]:
    return difflib.get_close_matches(name, list(known), n=MOST, cutoff=NEAR)


def unknown_command(ctx: click.Context, name: str, known: Iterable[str]) -> click.UsageError:
    near = nearest(name, known)
    if name.endswith(".py"):
        hint = f"Did you mean 'traindoctor run {name}'?"
    elif near:
        hint = f"Did you mean {' or '.join(map(repr, near))}?"
    else:
        hint = f"'{ctx.command_path} --help' lists them."
    return click.UsageError(f"No such command {name!r}. {hint}", ctx)


def unknown_option(error: click.NoSuchOption, more: Iterable[str] = ()) -> click.UsageError:
    """The same error with the options that are really near, the nearest first; click lists them by name."""
    known = [*more]
    if error.ctx is not None:
        known += [
            name
            for option in error.ctx.command.get_params(error.ctx)
            if isinstance(option, click.Option) and not option.hidden
            for name in (*option.opts, *option.secondary_opts)
        ]
    near = nearest(error.option_name, [name for name in known if name.startswith("--")])
    hint = f" Did you mean {' or '.join(map(repr, near))}?" if near else ""
    return click.UsageError(f"No such option {error.option_name!r}.{hint}", error.ctx)
