"""metrics.csv: one row per step, validation losses beside them, cut back when a run is resumed."""

import csv
import os
import re
from pathlib import Path

from traindoctor.lm.files import write_text, writing
from traindoctor.plain_files import read_bytes

COLUMNS = ("step", "tokens", "seconds", "lr", "loss", "grad_norm", "val_loss")
# A step that our own file can hold.
WHOLE = re.compile(r"[0-9]{1,12}")
# A line is under 100 bytes: the table of forty million steps.
MOST_BYTES = 4 << 30
HEAD = ",".join(COLUMNS) + "\n"


class MetricsFile:
    """Appends rows; `step` counts from 0, a validation belongs to the last step done before it."""

    def __init__(self, file: Path, *, first_step: int) -> None:
        self.file = file
        if first_step and file.exists():
            self._cut(first_step)
        else:
            write_text(file, HEAD)

    def add(self, rows: list[dict[str, float | int]]) -> None:
        with writing(self.file), self.file.open("a", encoding="utf-8", newline="") as out:
            table = csv.DictWriter(out, COLUMNS, lineterminator="\n")
            table.writerows({k: _short(v) for k, v in row.items()} for row in rows)
            out.flush()
            os.fsync(out.fileno())

    def _cut(self, first_step: int) -> None:
        """Drops the rows of steps that will be done again, and a half-written last line."""
        with writing(self.file):
            text = read_bytes(self.file, most=MOST_BYTES).decode("utf-8", errors="replace")
        lines = text.splitlines(keepends=True)
        kept = [
            line
            for line in lines
            if line.endswith("\n") and WHOLE.fullmatch(line.split(",")[0])
            if int(line.split(",")[0]) < first_step
        ]
        write_text(self.file, "".join([HEAD, *kept]))


def _short(value: float | int) -> str:
    # Losses with all digits of a float32: equal runs have equal files.
    return f"{value:.9g}" if isinstance(value, float) else str(value)
