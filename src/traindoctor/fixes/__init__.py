"""Changes of a script that cure a cause: made from what the record knows and the script's own text, which is never run.

`fix_for(finding, record)` is a unified diff, or None where no change is surely right. One file per cause; the table is here.
"""

import ast
from collections.abc import Callable, Mapping
from pathlib import Path, PurePath
from typing import Any

from traindoctor.checks.base import Finding
from traindoctor.fixes import (
    causal_mask_leak,
    double_softmax,
    loss_scale_wrong,
    missing_zero_grad,
    optimizer_holds_stale_params,
    params_not_in_optimizer,
    patch,
    targets_misaligned,
)
from traindoctor.fixes.source import Edit, Source
from traindoctor.plain_files import read_bytes
from traindoctor.record import Record
from traindoctor.record.script_text import MOST_READ, script_text
from traindoctor.record.secrets import REDACTED

FIXES: dict[str, Callable[[Source, Finding, Record], list[Edit]]] = {
    "missing-zero-grad": missing_zero_grad.fix,
    "targets-misaligned": targets_misaligned.fix,
    "causal-mask-leak": causal_mask_leak.fix,
    "double-softmax": double_softmax.fix,
    "loss-scale-wrong": loss_scale_wrong.fix,
    "params-not-in-optimizer": params_not_in_optimizer.fix,
    "optimizer-holds-stale-params": optimizer_holds_stale_params.fix,
}


def fix_for(finding: Finding, record: Record) -> str | None:
    """A diff of the script, which applies to it and leaves it valid Python."""
    make = FIXES.get(finding.cause)
    text = None if make is None else recorded_text(record)
    if make is None or text is None or not of_the_script(finding, record):
        return None
    try:
        edits = make(Source(text), finding, record)
        changed = Source(text).edited(edits)
        if changed is None or changed == text:
            return None
        ast.parse(changed)
    except (SyntaxError, ValueError, RecursionError):
        return None
    diff = patch.made(shown_path(record), text, changed)
    holds = patch.applied(patch.read(diff), text) == changed
    return diff if holds and REDACTED not in diff else None


def of_the_script(finding: Finding, record: Record) -> bool:
    """A line of another file is not changed: only the script's own text is recorded."""
    if finding.line is None:
        return True
    return PurePath(finding.line.rpartition(":")[0]).name == PurePath(shown_path(record)).name


def shown_path(record: Record) -> str:
    """As it was typed; of a path that leads elsewhere the name alone."""
    path = PurePath(str(_fact(record, "script.text").get("path", "script.py")))
    inside = not path.is_absolute() and ".." not in path.parts
    return path.as_posix() if inside else path.name


def recorded_text(record: Record) -> str | None:
    """The script's text, where a diff of it applies to the file: it was recorded whole, and has not changed since."""
    fact = _fact(record, "script.text")
    text = fact.get("text")
    if not isinstance(text, str) or not isinstance(fact.get("path"), str):
        return None
    if _fact(record, "script").get("patch"):
        return None  # a patched copy: the next fix is made from the script itself, once it has this one
    file = Path(fact["path"])
    now = script_text(file)
    if now is not None and now.get("text") != text:
        return None
    if not fact.get("redacted"):
        # Another size: a byte order mark, or lines that end in \r\n.
        whole = fact.get("bytes") == len(text.encode("utf-8", "replace"))
        return text if whole else None
    if now is None:
        return None
    # Where something was left out, the lines must still be those of the file.
    try:
        content = read_bytes(file, most=MOST_READ)
    except OSError:
        return None
    same_lines = content.count(b"\n") == text.count("\n") and b"\r" not in content
    return text if same_lines and not content.startswith(b"\xef\xbb\xbf") else None


def _fact(record: Record, name: str) -> Mapping[str, Any]:
    value = record.fact(name)
    return value if isinstance(value, Mapping) else {}
