"""A comparison of two runs as plain text: a table of two columns, no line wider than it may be."""

from collections.abc import Mapping, Sequence

from traindoctor.compare.run_rows import Row
from traindoctor.compare.run_scripts import Scripts
from traindoctor.record.wording import counted, wrapped

MIN_WIDTH = 40
INDENT = "  "
# Of the width, what the names of rows get.
NAMES = 0.36
# More than this nobody reads in a terminal; the JSON has all.
MOST_ROWS, MOST_DIFF = 24, 200
# Lines that a cell may take in its column.
HIGHEST = 4
# Sections whose equal rows say nothing.
ONLY_DIFFERENT = ("settings", "environment")


def lines_of(
    titles: tuple[str, str],
    headline: str,
    notes: Sequence[str],
    sections: Mapping[str, Sequence[Row]],
    script: Scripts,
    width: int,
) -> list[str]:
    width = max(MIN_WIDTH, width)
    lines = wrapped(headline, width)
    for mark, title in zip("AB", titles):
        lines += wrapped(title, width, f"{INDENT}{mark}  ", INDENT + " " * 3)
    for note in notes:
        lines += wrapped(note, width, f"{INDENT}note  ", INDENT + " " * 6)
    for name, rows in sections.items():
        lines += _section(name, rows, width)
    lines += ["", *wrapped(f"script: {script.said}", width)]
    for line in script.diff[:MOST_DIFF]:
        lines += _code(line, width)
    if len(script.diff) > MOST_DIFF:
        lines += wrapped(_left(len(script.diff) - MOST_DIFF, "line"), width, INDENT, INDENT)
    return lines


def _section(name: str, rows: Sequence[Row], width: int) -> list[str]:
    shown = [row for row in rows if row.differs] if name in ONLY_DIFFERENT else list(rows)
    if not shown:
        said = f"the same in all {len(rows)} that are known" if rows else "not recorded"
        return ["", *wrapped(f"{name}: {said}", width)]
    names = max(12, int(NAMES * width))
    cell = (width - names - 2 * len(INDENT)) // 2
    lines = ["", *_beside((name, "A", "B"), (names, cell, cell), lead="")]
    for row in shown[:MOST_ROWS]:
        lines += _row(row, (names, cell, cell), width)
        if row.note:
            lines += wrapped(f"law: {row.note}", width, INDENT * 2, INDENT * 4)
    if len(shown) > MOST_ROWS:
        lines += wrapped(_left(len(shown) - MOST_ROWS, "row"), width, INDENT, INDENT)
    if len(shown) < len(rows):
        lines += wrapped(f"the same: {len(rows) - len(shown)} others", width, INDENT, INDENT)
    return lines


def _row(row: Row, widths: tuple[int, int, int], width: int) -> list[str]:
    """Cells that would become too narrow and high are written below each other."""
    cells = row.said()
    if max(map(len, cells)) <= HIGHEST * widths[1]:
        return _beside((row.name, *cells), widths, lead=INDENT)
    pairs = [("A and B", cells[0])] if cells[0] == cells[1] else list(zip("AB", cells))
    return [
        line
        for mark, text in pairs
        for line in wrapped(f"{row.name} in {mark}: {text}", width, INDENT, INDENT * 2)
    ]


def _beside(cells: tuple[str, str, str], widths: tuple[int, int, int], *, lead: str) -> list[str]:
    """Each cell is wrapped within its own column."""
    columns = [
        wrapped(text, width, lead if not number else "", INDENT * 2 if not number else "")
        for number, (text, width) in enumerate(zip(cells, widths))
    ]
    height = max(map(len, columns))
    filled = [[*column, *[""] * (height - len(column))] for column in columns]
    return [
        INDENT.join(part.ljust(width) for part, width in zip(parts, widths)).rstrip()
        for parts in zip(*filled)
    ]


def _code(line: str, width: int) -> list[str]:
    """A line of a diff: a longer one goes on in the next, behind the same sign."""
    line = line.expandtabs(4)
    lines = [line[:width]]
    sign, left = line[:1], line[width:]
    room = width - 5
    return lines + [f"{sign}... {left[i : i + room]}" for i in range(0, len(left), room)]


def _left(number: int, what: str) -> str:
    return f"and {counted(number, f'more {what}')}"
