"""The verdict on a terminal: a tired person understands it in ten seconds.

Lines are wrapped by us, so a log file and an 80-column window read the same; colour only on a terminal.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import textwrap
from pathlib import Path
from typing import IO, Any

from traindoctor.diagnosis import Cause, Diagnosis
from traindoctor.report.words import by_reason, by_test, listed, number, place, proof

MIN_WIDTH, MAX_WIDTH = 40, 100
# Proof that fits a glance; the rest is in the JSON and on the page.
MAX_EVIDENCE = 3
MAX_CAUSES = 3
MAX_NAMES = 6
MAX_REASONS = 4
# In the folder of a run: the change that the verdict offers.
FIX_FILE = "fix.diff"
_COLOUR = {
    "sick": "bold red",
    "healthy": "bold green",
    "inconclusive": "bold yellow",
    "running": "bold",
}


def width_of(stream: IO[Any] | None = None) -> int:
    columns = shutil.get_terminal_size((80, 24)).columns
    return max(MIN_WIDTH, min(MAX_WIDTH, columns))


def report(diagnosis: Diagnosis, *, width: int = 80) -> str:
    """The whole verdict as plain text."""
    width = max(MIN_WIDTH, width)
    lines = _wrap(_headline(diagnosis), width)
    if diagnosis.verified is not None:
        lines += ["", *_field("verified", str(diagnosis.verified["said"]), width)]
    roots = [cause for cause in diagnosis.causes if cause.is_root]
    shown = [cause for cause in roots if cause.finding.status != "possible"][:MAX_CAUSES]
    for count, cause in enumerate(shown, 1):
        lines += ["", *_cause(cause, width, count if len(shown) > 1 else None)]
    guesses = [cause.finding for cause in roots if cause.finding.status == "possible"]
    if guesses:
        names = [f"{guess.cause} ({guess.confidence:.2f})" for guess in guesses]
        lines += ["", *_field("possible", listed(names, MAX_NAMES) + "; not proven", width)]
    lines += _rest(diagnosis, width)
    return "\n".join(lines) + "\n"


def next_steps(diagnosis: Diagnosis, folder: Path) -> str:
    """What people do after a verdict, each command on a line of its own: it is copied, so it is never wrapped."""
    run = shlex.quote(min(str(folder), os.path.relpath(folder), key=len))
    commands = [f"traindoctor ui {run}", f"traindoctor report {run}"]
    if diagnosis.causes:
        commands.insert(0, f"traindoctor explain {diagnosis.causes[0].finding.cause}")
    if diagnosis.reproduce and any(cause.fix for cause in diagnosis.causes):
        again = diagnosis.reproduce.partition(" run ")[2]
        commands.insert(1, f"traindoctor run --verify-fix {run}/{FIX_FILE} {again}")
    leads = ["  next       ", *[" " * 13] * len(commands)]
    return "".join(f"{lead}{command}\n" for lead, command in zip(leads, commands))


def _headline(diagnosis: Diagnosis) -> str:
    steps = f"{diagnosis.steps} step{'' if diagnosis.steps == 1 else 's'}"
    if diagnosis.overhead_percent is not None:
        seconds = diagnosis.overhead_seconds
        spent = "" if seconds is None else f"{number(round(seconds, 1))} s, "
        percent = diagnosis.overhead_percent
        steps += f", cost {spent}{number(round(percent, 1 if percent < 10 else None))} %"
        if diagnosis.after_seconds:
            steps += f", and {number(diagnosis.after_seconds)} s of tests after the end"
    if diagnosis.verdict == "sick":
        root = diagnosis.causes[0].finding
        return f"traindoctor: SICK, {root.cause} ({root.status}) [{steps}]"
    return f"traindoctor: {diagnosis.verdict.upper()} [{steps}]: {diagnosis.reason}"


def _cause(cause: Cause, width: int, count: int | None) -> list[str]:
    found = cause.finding
    lead = f"{count}. " if count else ""
    since = "" if found.since_step is None else f", since step {found.since_step}"
    head = f"{lead}{found.cause} ({found.status}, confidence {found.confidence:.2f}{since})"
    lines = [*_wrap(head, width), *_field("what", found.summary, width)]
    where = place(found)
    if where:
        lines += _field("where", where, width)
    if found.law:
        lines += _field("law", f"broken: {found.law}", width)
    if found.undecided:
        lines += _field("unproven", found.undecided, width)
    for item in found.evidence[:MAX_EVIDENCE]:
        lines += _field("proof", proof(item), width)
    lines += _field("change", found.remedy, width)
    if cause.fix is not None:
        lines += _fix(cause.fix)
    if cause.consequences:
        lines += _field("explains", listed(list(cause.consequences), MAX_NAMES), width)
    return lines


def _fix(diff: str) -> list[str]:
    """The lines that change, as they stand in the script and below their number: code is never wrapped."""
    lines: list[str] = []
    at, last = 0, ""
    for line in diff.splitlines()[2:]:
        if found := re.match(r"@@ -(\d+)", line):
            at = int(found[1])
        elif line[:1] in ("+", "-"):
            lines += [f"line {at}:"] if not lines or last not in ("+", "-") else []
            lines.append(line)
        last = line[:1]
        at += last in (" ", "-")
    leads = ["  fix        ", *[" " * 13] * len(lines)]
    return [lead + line for lead, line in zip(leads, lines)]


def _rest(diagnosis: Diagnosis, width: int) -> list[str]:
    lines: list[str] = []
    if diagnosis.symptoms:
        lines += _field("seen", "; ".join(s.summary for s in diagnosis.symptoms), width)
    for found in diagnosis.advice:
        lines += _field("slow", f"{found.cause}: {found.summary}. {found.remedy}", width)
    lines += _groups("passed", by_test(diagnosis.ruled_out), width)
    lines += _groups("not tested", by_reason(diagnosis.not_judged), width)
    if diagnosis.not_applicable:
        names = [one.cause for one in diagnosis.not_applicable]
        lines += _field(
            "n/a", listed(names, MAX_NAMES) + " (nothing in this run could have them)", width
        )
    for note in diagnosis.notes[:MAX_REASONS]:
        lines += _field("note", note, width)
    if diagnosis.decides:
        lines += _field("to decide", diagnosis.decides, width)
    return ["", *lines] if lines else []


def _groups(name: str, groups: list[tuple[str, list[str]]], width: int) -> list[str]:
    """'a, b (why); c (why); and 3 more'"""
    if not groups:
        return []
    texts = [f"{listed(names, MAX_NAMES)} ({why})" for why, names in groups[:MAX_REASONS]]
    left = sum(len(names) for _, names in groups[MAX_REASONS:])
    return _field(name, "; ".join([*texts, *([f"and {left} more"] if left else [])]), width)


def _wrap(text: str, width: int, lead: str = "", rest: str = "") -> list[str]:
    # Slugs stay whole; a path or a parameter name longer than the window is broken all the same.
    wrapped = textwrap.wrap(
        " ".join(text.split()),
        width,
        initial_indent=lead,
        subsequent_indent=rest,
        break_on_hyphens=False,
    )
    return wrapped or [lead]


def _field(name: str, text: str, width: int) -> list[str]:
    return _wrap(text, width, f"  {name:<10} ", " " * 13)


def show(diagnosis: Diagnosis, stream: IO[str]) -> None:
    """Prints to the stream: coloured headline on a terminal, plain text elsewhere."""
    text = report(diagnosis, width=width_of(stream))
    if not stream.isatty():
        stream.write(text)
        stream.flush()
        return
    from rich.console import Console
    from rich.text import Text

    styled = Text(text)
    styled.stylize(_COLOUR[diagnosis.verdict], 0, text.find("\n"))
    for name, style in (("change", "bold"), ("proof", "cyan"), ("not tested", "dim")):
        styled.highlight_words([f"  {name:<10} "], style)
    Console(file=stream, highlight=False, soft_wrap=True).print(styled, end="")
