"""The first sequence of a batch as a person reads it: inputs and targets, as text where a tokenizer is known."""

import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from traindoctor.record import ExamResult

Decode = Callable[[list[int]], Any]


def report(exams: Iterable[ExamResult], decode: Decode | None, *, width: int = 80) -> str:
    """Two lines per look-up of tokens; empty where no loss has tokens."""
    results = [result for result in exams if result.exam == "shift" and result.done]
    pairs = results[-1].values["pairs"] if results else []
    lines = []
    for pair in pairs[:2]:
        for name, key in (("first inputs", "first_inputs"), ("first targets", "first_targets")):
            text = readable(pair.get(key, []), decode)
            lines += textwrap.wrap(f"{name:<14} {text}", width, subsequent_indent=" " * 15)
    return "\n".join(lines) + "\n" if lines else ""


def readable(tokens: Sequence[int], decode: Decode | None) -> str:
    """The decoder is the user's: what it cannot read is shown as numbers."""
    numbers = " ".join(map(str, tokens))
    if decode is None or not tokens:
        return numbers
    try:
        text = decode([token for token in tokens if token >= 0])
    except Exception:  # the user's own code, with tokens it may not know
        return numbers
    return repr(text) if isinstance(text, str) else numbers


def find_decoder(names: Mapping[str, Any]) -> Decode | None:
    """Among a script's own names: a function `decode`, or a tokenizer, known by encode and decode."""
    own = names.get("decode")
    if callable(own):
        return own  # type: ignore[no-any-return]
    for value in names.values():
        if isinstance(value, str | bytes | type):
            continue
        if all(callable(getattr(value, method, None)) for method in ("encode", "decode")):
            return value.decode  # type: ignore[no-any-return]
    return None
