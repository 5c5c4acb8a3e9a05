"""The answer as lines of text: the headline, what kind of difference it is, and the tensors around the first one."""

import textwrap
from collections.abc import Iterator, Sequence

from traindoctor.compare.answer import Answer, short
from traindoctor.compare.walk import WORDS, Place

# Tensors shown before the first difference and after it.
BEFORE, AFTER = 3, 6
MARKS = {
    "same": "ok",
    "different": "DIFFERS",
    "missing": "only in A",
    "shape": "SHAPE",
    "no gradient": "NONE IN B",
}
LABEL = 11


def lines(found: Answer, *, width: int = 80) -> Iterator[str]:
    """Everything a terminal shows."""
    yield from _labelled("", found.headline, width, indent=0)
    yield ""
    yield from _labelled("A", found.a, width)
    yield from _labelled("B", found.b, width)
    if found.kind is not None:
        yield from _labelled("what", found.kind.sentence, width)
    elif found.first is not None:
        yield from _labelled("what", _unexplained(found), width)
    yield from _labelled("tolerance", _tolerance(found), width)
    for layout in _some(found.layouts):
        yield from _labelled("paired", layout, width)
    notes = found.notes[1:] if found.verdict == "inconclusive" else found.notes
    for note in notes:
        yield from _labelled("note", note, width)
    yield ""
    yield from _table(around(found), width)
    yield from _counts(found, width)
    if found.reproduce:
        yield from _labelled("again", found.reproduce, width)


def _unexplained(found: Answer) -> str:
    first = found.first
    assert first is not None
    if first.state == "shape":
        return f"B has the shape {first.shape} there, A {first.entry.shape}"
    return (
        "no simple change (a factor, another layout, a missing term, a mask, an epsilon, ...) explains it; "
        "look at what makes this tensor of those before it, which agree"
    )


def _tolerance(found: Answer) -> str:
    if found.tolerance.draws and not found.tolerance.repeated:
        return f"measured on {found.tolerance.draws} perturbed dumps beside A"
    if found.tolerance.draws:
        times = found.tolerance.draws - 1
        often = "once" if times == 1 else f"{times} times"
        return (
            f"measured: A again and {often} with every operation moved by one unit in the "
            f"last place ({found.tolerance.coarsest})"
        )
    if found.verdict == "equal" and not any(p.apart and p.apart.whole for p in found.places):
        return "not needed"
    return f"estimated from the dtype ({found.tolerance.coarsest})"


def around(found: Answer) -> list[Place]:
    """The tensors near the first difference; without one the first few and those nearest to the tolerance."""
    places = [place for place in found.places if place.state != "missing"]
    if found.first is None:
        nearest = sorted(places, key=lambda place: -(place.over or 0.0))[: BEFORE + AFTER]
        return [place for place in places if place in nearest]
    at = places.index(found.first)
    return places[max(0, at - BEFORE) : at + AFTER]


def _table(places: Sequence[Place], width: int) -> Iterator[str]:
    rows = [("", "step", "tensor", "difference", "tolerance", "")]
    for place in places:
        apart = f"{place.apart.whole:.1e}" if place.apart else ""
        allowed = f"{place.allowed.whole:.1e}" if place.allowed else ""
        over = place.over or 0.0
        mark = MARKS[place.state] + (
            f" {short(over)}x" if place.state == "different" and over < 1e30 else ""
        )
        name = "" if place.entry.kind == "loss" else f" {place.entry.name}"
        kind = "weight" if place.entry.kind == "weight" else WORDS[place.entry.kind]
        rows.append((kind, str(place.entry.step), name.strip(), apart, allowed, mark))
    sizes = [max(len(row[i]) for row in rows) for i in range(6)]
    # The name gives way where a line is too long.
    sizes[2] = min(sizes[2], max(12, width - sum(sizes) + sizes[2] - 10))
    for row in rows:
        cells = [_cut(cell, size).ljust(size) for cell, size in zip(row, sizes)]
        line = "  ".join(cells).rstrip()
        yield line if len(line) <= width else line[: width - 1] + "…"


def _cut(text: str, size: int) -> str:
    return text if len(text) <= size else "…" + text[len(text) - size + 1 :]


def _counts(found: Answer, width: int) -> Iterator[str]:
    states = [place.state for place in found.places]
    parts = [f"{states.count('same')} agree", f"{states.count('different')} differ"]
    if "missing" in states:
        parts.append(f"{states.count('missing')} of A have no partner in B")
    if "no gradient" in states:
        parts.append(f"{states.count('no gradient')} have no gradient in B")
    if "shape" in states:
        parts.append(f"{states.count('shape')} have another shape")
    yield ""
    yield from _labelled("all", ", ".join(parts), width)


def _some(texts: Sequence[str], most: int = 4) -> Iterator[str]:
    yield from texts[:most]
    if len(texts) > most:
        yield f"... and {len(texts) - most} more"


def _labelled(label: str, text: str, width: int, *, indent: int = LABEL) -> list[str]:
    return textwrap.wrap(
        text,
        width,
        initial_indent=label.ljust(indent),
        subsequent_indent=" " * indent,
        break_on_hyphens=False,
        break_long_words=True,
    ) or [label]
