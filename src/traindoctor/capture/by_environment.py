"""What the environment asks for, at the start of every interpreter.

TRAINDOCTOR=1: Python runs a script as `traindoctor run` would, whoever started it. A child of a watched run joins that run,
whatever its starter has made of PYTHONPATH (Ray's `runtime_env` sets it anew), on which our start-up folder stands.

    TRAINDOCTOR=1 srun python train.py
    TRAINDOCTOR="--after 60 --json verdict.json" torchrun --nproc-per-node 8 train.py

Imported by traindoctor.pth, and only where one of the two variables is set. The process of a script becomes
`python -m traindoctor run ...`, with the same number, streams and folder. Imports nothing heavy.
"""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Sequence
from contextlib import suppress

from traindoctor.capture.arming import VARIABLE as WATCHED
from traindoctor.capture.arming import join

VARIABLE = "TRAINDOCTOR"
YES = frozenset({"1", "true", "yes", "on"})
NO = frozenset({"", "0", "false", "no", "off"})
OURS = "traindoctor"


def instead(arguments: Sequence[str], typed: Sequence[str], value: str) -> list[str] | None:
    """The command that takes the place of this one: `arguments` is sys.argv at the start, `typed` the whole command line.

    None where there is no script to watch: a line of code, an interactive session, our own command.
    """
    if value.lower() in NO or not arguments or arguments[0] in ("", "-", "-c"):
        return None
    rest = list(arguments[1:])
    head = list(typed[1 : len(typed) - len(rest)])
    if arguments[0] == "-m":
        target = _module(head)
        if target is None or target[-1].partition(".")[0] == OURS:
            return None
    else:
        target = head[-1:]
        head = head[:-1]
        if not target or os.path.basename(target[0]) == OURS:
            return None
    own = [] if value.lower() in YES else shlex.split(value)
    return [sys.executable, *head, "-m", OURS, "run", "--if-trained", *own, *target, *rest]


def _module(head: list[str]) -> list[str] | None:
    """Takes `-m name`, `-mname` or `-um name` off the interpreter's own options."""
    if len(head) >= 2 and head[-2].startswith("-") and head[-2].endswith("m"):
        name, flags = head.pop(), head.pop()[1:-1]
    elif head and head[-1].startswith("-") and "m" in head[-1]:
        flags, _, name = head.pop()[1:].partition("m")
    else:
        return None
    if flags:
        head.append(f"-{flags}")
    return ["-m", name]


def join_run() -> None:
    with suppress(Exception):  # no run that can be joined
        join(json.loads(os.environ[WATCHED]))


def replace_process() -> None:
    try:
        command = instead(sys.argv, sys.orig_argv, os.environ[VARIABLE])
    except ValueError as error:  # a quotation mark without its other half
        print(f"traindoctor: cannot read {VARIABLE}: {error}; not watching", file=sys.stderr)
        return
    if command is not None:
        os.execv(command[0], command)


if WATCHED in os.environ:
    join_run()
elif VARIABLE in os.environ:
    replace_process()
