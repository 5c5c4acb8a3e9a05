"""Runs the programs that know CUDA plain and attached on this machine's GPU and prints a table.

    python tests/field/on_gpu.py --jobs 8 --out field-gpu.txt

Needs Python, torch with CUDA and numpy; no pytest, nothing installed from the project.
"""

from __future__ import annotations

import argparse
import importlib.util
import resource
import signal
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(1, str(Path(__file__).parents[2] / "src"))

from rows import ROWS, Row
from same_run import differences


def examine(row: Row, device: str, control: bool) -> tuple[Row, list[str], float]:
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="field-", ignore_cleanup_errors=True) as folder:
        try:
            found = differences(row, Path(folder), device, control=control)
        except Exception as error:  # one row that cannot be compared must not end the table
            found = [f"not compared: {type(error).__name__}: {error}"]
    return row, found, time.monotonic() - began


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--jobs", type=int, default=8, help="programs at a time")
    parser.add_argument("--out", type=Path, help="write the table to this file as well")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument(
        "--only",
        default="",
        help="programs whose name contains this, or one of several given by commas",
    )
    parser.add_argument("--control", action="store_true", help="plain twice: must be all the same")
    options = parser.parse_args()
    # Shells start jobs in the background with Ctrl-C ignored, and programs inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    parts = options.only.split(",")
    rows = [
        row
        for row in ROWS
        if getattr(row, options.device) and any(part in row.name for part in parts)
    ]
    missing = [row for row in rows if not all(map(importlib.util.find_spec, row.needs))]
    rows = [row for row in rows if row not in missing]
    lines, failed = [], 0

    def tell(line: str) -> None:
        lines.append(line)
        print(line, flush=True)

    with ThreadPoolExecutor(options.jobs) as pool:
        examined = pool.map(lambda row: examine(row, options.device, options.control), rows)
        for row, found, seconds in examined:
            failed += bool(found)
            tell(f"{'DIFFERS' if found else 'same':<8} {row.name:<44} {seconds:6.1f} s")
            for line in found:
                tell(f"         {line}")
    for row in missing:
        tell(f"{'skipped':<8} {row.name:<44} needs {', '.join(row.needs)}")
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = used.ru_utime + used.ru_stime
    tell(f"{cpu:.0f} s of CPU in all programs")
    tell(f"{len(rows) - failed} passed, {failed} failed, {len(missing)} skipped")
    if options.out is not None:
        options.out.write_text("\n".join(lines) + "\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
