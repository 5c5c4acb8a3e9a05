"""Every pair of tests/compare/pairs through `traindoctor compare`: what is said, how far from the tolerance, how long.

    python benchmarks/compare_pairs.py                    all pairs on the CPU
    python benchmarks/compare_pairs.py --device cuda      the same on a GPU, with TF32 and the backends of attention
    python benchmarks/compare_pairs.py --only bf16        those with this in their name

The last column is `ok` where the answer is the expected one. `over` is the largest difference of any tensor over its
tolerance: above 1 two sides differ, and right ones should stay below a half.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path

TESTS = Path(__file__).parents[1] / "tests"
sys.path.insert(0, str(TESTS))

from compare.pairs.table import PAIRS, Pair  # noqa: E402
from traindoctor.compare.answer import Answer  # noqa: E402
from traindoctor.comparison import compare_sides  # noqa: E402
from traindoctor.tracing.patient import PatientSide  # noqa: E402

MOST_OVER = 0.5


def side(text: str) -> PatientSide:
    file, _, function = text.partition(":")
    return PatientSide(TESTS / "compare" / "pairs" / f"{file}.py", function)


def right(pair: Pair, found: Answer, over: float) -> bool:
    if pair.first is None:
        return found.verdict == "equal" and over <= MOST_OVER
    if found.first is None or found.first.entry.key != pair.first:
        return False
    return not pair.kind or (found.kind is not None and found.kind.code == pair.kind)


def row(pair: Pair) -> tuple[list[str], bool]:
    start = time.perf_counter()
    try:
        found = compare_sides(side(pair.a), side(pair.b))
    except Exception as error:
        return [pair.name, "failed", "", str(error).split("\n")[0][:60], "", "", "WRONG"], False
    seconds = time.perf_counter() - start
    worst = max(found.places, key=lambda place: place.over or 0.0)
    shown = found.first or worst
    kind = found.kind.code if found.kind else ""
    over = f"{shown.over:.3g}" if shown.over is not None else ""
    good = right(pair, found, worst.over or 0.0)
    place = " ".join(map(str, shown.entry.key))
    end = "ok" if good else "WRONG"
    return [pair.name, found.verdict, over, place, kind, f"{seconds:.1f}", end], good


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--only", default="", help="part of a name")
    options = parser.parse_args()
    # The patients read it.
    os.environ["PAIRS_DEVICE"] = options.device
    widths = (44, 10, 9, 42, 16, 7, 5)
    titles = ("A | B, or the fault", "verdict", "over", "largest or first", "kind", "s", "")
    print("  ".join(title.ljust(width) for title, width in zip(titles, widths)).rstrip())
    wrong = 0
    for pair in PAIRS:
        if options.only in pair.name and pair.device in ("any", options.device):
            cells, good = row(pair)
            wrong += not good
            print("  ".join(c.ljust(w) for c, w in zip(cells, widths)).rstrip(), flush=True)
    print(f"{wrong} wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
