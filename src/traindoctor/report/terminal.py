"""The verdict on a terminal: a tired person understands it in ten seconds.

Lines are wrapped by us, so a log file and an 80-column window read the same; colour only on a terminal.
"""

import re
import shlex
import shutil
import textwrap
from typing import IO, Any

from traindoctor.diagnosis import Cause, Diagnosis
from traindoctor.diagnosis.rules import ESSENTIAL
from traindoctor.diagnosis.verdict import RUN
from traindoctor.record import Record
from traindoctor.record.text import readable
from traindoctor.record.wording import counted, some_of, wrapped
from traindoctor.report.excerpt import AROUND, excerpt
from traindoctor.report.words import by_reason, number, place, proof

MIN_WIDTH, MAX_WIDTH = 40, 100
# Proof that fits a glance; the rest is in the JSON and on the page.
MAX_EVIDENCE = 3
MAX_CAUSES = 3
MAX_NAMES = 6
MAX_REASONS = 4
# Where the texts of a verdict begin.
INDENT = " " * 13
_COLOUR = {
    "sick": "bold red",
    "healthy": "bold green",
    "inconclusive": "bold yellow",
    "running": "bold",
}


def width_of(stream: IO[Any] | None = None) -> int:
    columns = shutil.get_terminal_size((80, 24)).columns
    return max(MIN_WIDTH, min(MAX_WIDTH, columns))


def report(diagnosis: Diagnosis, record: Record | None = None, *, width: int = 80) -> str:
    """The whole verdict as plain text. Of the record only the script's own text is shown."""
    width = max(MIN_WIDTH, width)
    script = None if record is None else record.fact("script.text")
    lines = wrapped(_headline(diagnosis), width)
    if diagnosis.verified is not None:
        lines += field("verified", str(diagnosis.verified["said"]), width)
    roots = [cause for cause in diagnosis.causes if cause.is_root]
    shown = [cause for cause in roots if cause.finding.status != "possible"][:MAX_CAUSES]
    for count, cause in enumerate(shown, 1):
        lines += ["", *_cause(cause, script, width, count if len(shown) > 1 else None)]
    if not shown:
        lines += ["", *_reason(diagnosis, width)]
    guesses = [cause.finding.cause for cause in roots if cause.finding.status == "possible"]
    if guesses:
        lines += field("possible", some_of(guesses, MAX_NAMES) + " (not proven)", width)
    lines += _rest(diagnosis, width)
    return "\n".join(lines) + "\n"


def _headline(diagnosis: Diagnosis) -> str:
    steps = counted(diagnosis.steps, "step")
    root = diagnosis.root
    if root is not None:
        return f"traindoctor: SICK, {root.cause} ({root.status}) [{steps}]"
    return f"traindoctor: {diagnosis.verdict.upper()} [{steps}]"


def _reason(diagnosis: Diagnosis, width: int) -> list[str]:
    """Why nothing is named, and what would settle it."""
    label = {"healthy": "result", "running": "so far"}.get(diagnosis.verdict, "why")
    lines = field(label, diagnosis.reason, width)
    decides = diagnosis.decides
    if decides is None:
        return lines
    if decides.startswith(RUN):
        return lines + _labelled("to decide", command_lines(decides, width, INDENT))
    return lines + field("to decide", decides, width)


def _cause(cause: Cause, script: Any, width: int, count: int | None) -> list[str]:
    found = cause.finding
    since = "" if found.since_step is None else f" since step {found.since_step}"
    lead = f"{count}. " if count else ""
    lines = [*wrapped(f"{lead}{found.cause}, {found.status}{since}", width)]
    lines += field("what", found.summary, width)
    where = place(found)
    source = _source(script, found.line, width) if where else []
    if where:
        lines += field("where", where, width) + source
    if found.law:
        lines += field("violates", found.law, width)
    if found.undecided:
        lines += field("caveat", f"not proven: {found.undecided}", width)
    told = [proof(item) for item in found.evidence[:MAX_EVIDENCE]]
    proofs = [line for one in told for line in wrapped(one, width, INDENT, INDENT + "  ")]
    lines += _labelled("proof", proofs) if proofs else []
    lines += field("fix", found.remedy, width)
    if cause.fix is not None:
        lines += _labelled("diff", _diff(cause.fix, around=0 if source else AROUND))
    if cause.consequences:
        lines += field("explains", some_of(list(cause.consequences), MAX_NAMES), width)
    return lines


def _source(script: Any, line: str | None, width: int) -> list[str]:
    """The line with two around it. It is shown whole; those around it are cut at the window's end."""
    lines: list[str] = []
    for at, text, meant in excerpt(script, line):
        lead = f"{INDENT[:-2]}{'>' if meant else ' '} {at:>4} | "
        text = readable(text)
        if meant:
            room, indent = width - len(lead), len(text) - len(text.lstrip())
            parts = textwrap.wrap(text, room, subsequent_indent=" " * (indent + 4)) or [""]
            lines += [lead + parts[0], *(f"{' ' * (len(lead) - 2)}| {part}" for part in parts[1:])]
        else:
            whole = f"{lead}{text}".rstrip()
            lines.append(whole if len(whole) <= width else whole[: width - 3].rstrip() + "...")
    return lines


def _diff(diff: str, *, around: int = 0) -> list[str]:
    """The lines that change, as they stand in the script and below their number: code is never wrapped. `around`: so many
    of the lines before and after them, where no excerpt of the script has shown the place."""
    numbered: list[tuple[int, str]] = []
    at = 0
    for line in diff.splitlines()[2:]:
        if found := re.match(r"@@ -(\d+)", line):
            at = int(found[1])
            numbered.append((at, "@"))  # what follows does not stand below what was before
        elif line[:1] in ("+", "-", " "):
            numbered.append((at, line))
            at += line[0] != "+"
    changed = [i for i, (_, line) in enumerate(numbered) if line[0] in "+-"]
    lines: list[str] = []
    last = -2
    for i, (_, line) in enumerate(numbered):
        if line == "@" or not any(abs(i - one) <= around for one in changed):
            continue
        if not line.strip() and i != last + 1:
            continue  # an excerpt does not begin with an empty line
        if i != last + 1:
            first = next(numbered[one][0] for one in changed if one >= i)
            lines.append(f"{INDENT}line {first}:")
        lines.append(f"{INDENT}{line}".rstrip())
        last = i
    while lines and not lines[-1]:
        lines.pop()
    return lines


def _rest(diagnosis: Diagnosis, width: int) -> list[str]:
    """What else was seen and tested, in a few lines: --json and the page have all of it."""
    lines: list[str] = []
    seen = [s.summary for s in diagnosis.symptoms if not diagnosis.reason.startswith(s.summary)]
    if seen:
        lines += field("seen", "; ".join(seen), width)
    for found in diagnosis.advice:
        lines += field("slow", f"{found.cause}: {found.summary}. {found.remedy}", width)
    if diagnosis.not_judged:
        groups = by_reason(diagnosis.not_judged)
        lines += field("not tested", _groups(groups), width)
    if diagnosis.ruled_out or diagnosis.not_applicable:
        lines += field("passed", _passed(diagnosis), width)
    for note in diagnosis.notes[:MAX_REASONS]:
        lines += field("note", note, width)
    if diagnosis.overhead_percent is not None:
        lines += field("cost", _cost(diagnosis, diagnosis.overhead_percent), width)
    return ["", *lines] if lines else []


def _cost(diagnosis: Diagnosis, percent: float) -> str:
    """'1.3 s while the script ran (1.2 %), 0.6 s of tests after it'"""
    share = f"{number(round(percent, 1 if percent < 10 else None))} %"
    seconds = diagnosis.overhead_seconds
    spent = share if seconds is None else f"{number(round(seconds, 1))} s"
    text = f"{spent} while the script ran"
    if seconds is not None:
        text += f" ({share})"
    if diagnosis.after_seconds:
        text += f", {number(diagnosis.after_seconds)} s of tests after it"
    return text


def _groups(groups: list[tuple[str, list[str]]]) -> str:
    """'a, b (why); c (why); and 3 more'"""
    texts = [f"{some_of(names, MAX_NAMES)} ({why})" for why, names in groups[:MAX_REASONS]]
    left = sum(len(names) for _, names in groups[MAX_REASONS:])
    return "; ".join([*texts, *([f"and {left} more"] if left else [])])


def _passed(diagnosis: Diagnosis) -> str:
    names = [one.cause for one in diagnosis.ruled_out]
    names.sort(key=lambda name: name not in ESSENTIAL)
    text = f"{counted(len(names), 'test')}"
    if names:
        text += f": {some_of(names, MAX_NAMES)}"
    if diagnosis.not_applicable:
        text += f"; {len(diagnosis.not_applicable)} do not apply"
    return f"{text}; --json lists all"


def field(name: str, text: str, width: int) -> list[str]:
    return wrapped(text, width, f"  {name:<10} ", INDENT)


def _labelled(name: str, lines: list[str]) -> list[str]:
    return [f"  {name:<10} {lines[0][len(INDENT) :]}", *lines[1:]]


def command_lines(command: str, width: int, indent: str) -> list[str]:
    """A command that a reader copies: where it is too long, a shell reads on after each backslash."""
    lines: list[str] = []
    for word in map(shlex.quote, shlex.split(command)):
        if lines and len(indent) + len(f"{lines[-1]} {word}") <= width - 2:
            lines[-1] += f" {word}"
        else:
            lines.append(f"  {word}" if lines else word)
    return [f"{indent}{line} \\" for line in lines[:-1]] + [f"{indent}{lines[-1]}"]


def show(diagnosis: Diagnosis, stream: IO[str], record: Record | None = None) -> None:
    """Prints to the stream: coloured headline on a terminal, plain text elsewhere."""
    text = report(diagnosis, record, width=width_of(stream))
    if not stream.isatty():
        stream.write(text)
        stream.flush()
        return
    from rich.console import Console
    from rich.text import Text

    styled = Text(text)
    styled.stylize(_COLOUR[diagnosis.verdict], 0, text.find("\n"))
    for name, style in (("fix", "bold"), ("proof", "cyan"), ("not tested", "dim")):
        styled.highlight_words([f"  {name:<10} "], style)
    styled.highlight_regex(r"(?m)^ {11}> .*$", "bold")
    Console(file=stream, highlight=False, soft_wrap=True).print(styled, end="")
