#!/usr/bin/env python3
"""Scores verdicts against the truth: hits, misses, false alarms.

    python corpus/score.py FOLDER [--truth corpus/truth.json] [--bar DETECTED FIRST ALARMS]

FOLDER holds one verdict per script, <name>.json, in the form that `traindoctor run --json` writes.
A sick script counts as detected when its verdict is sick; its cause as first (or among three) when the true
cause, or one that the truth file also accepts, stands there in a detected script. What only costs time or memory is
no disease: there the right advice counts instead. A healthy script that is called sick is a false alarm; inconclusive
is counted apart.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent


@dataclass(frozen=True)
class Row:
    """One script: what is true of it and what was said."""

    name: str
    truth: str | None
    accept: frozenset[str]
    verdict: str
    causes: tuple[str, ...]
    proven_step: int | None = None
    overhead: float | None = None
    seconds: float | None = None
    advice: tuple[str, ...] = ()

    @property
    def sick(self) -> bool:
        return self.truth is not None

    @property
    def detected(self) -> bool:
        advised = bool(self.advice) and self.advice[0] in self.accept | {self.truth or ""}
        return self.sick and (self.verdict == "sick" or advised)

    @property
    def rank(self) -> int | None:
        """1 when the first cause is right."""
        good = self.accept | {self.truth or ""}
        said = (*self.causes, *self.advice)
        return next((place for place, c in enumerate(said, 1) if c in good), None)

    @property
    def first(self) -> bool:
        return self.detected and self.rank == 1

    @property
    def among_three(self) -> bool:
        return self.detected and self.rank is not None and self.rank <= 3

    @property
    def false_alarm(self) -> bool:
        return not self.sick and self.verdict == "sick"

    @property
    def result(self) -> str:
        if not self.sick:
            return {"sick": "FALSE ALARM", "healthy": "ok"}.get(self.verdict, self.verdict)
        if not self.detected:
            return "MISSED"
        return "first" if self.first else "among 3" if self.among_three else "WRONG CAUSE"


def read_row(name: str, truth: Mapping[str, Any], folder: Path) -> Row:
    """A verdict that is missing or unreadable is a result too."""
    try:
        said = json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))
        causes = list(dict.fromkeys(c["cause"] for c in said.get("causes", [])))
        verdict = str(said.get("verdict", "none"))
    except FileNotFoundError:
        said, causes, verdict = {}, [], "missing"
    except (ValueError, KeyError, TypeError, AttributeError):
        said, causes, verdict = {}, [], "unreadable"
    row = Row(name, truth.get("cause"), frozenset(truth.get("accept", ())), verdict, tuple(causes))
    proven = None
    if row.rank is not None:
        proven = said["causes"][row.rank - 1].get("proven_step")
    advice = tuple(one["cause"] for one in said.get("advice", ()))
    return Row(
        row.name,
        row.truth,
        row.accept,
        row.verdict,
        row.causes,
        proven,
        said.get("overhead_percent"),
        said.get("wall_seconds"),
        advice,
    )


def table(rows: Iterable[Row]) -> str:
    head = f"{'script':<8}{'truth':<30}{'verdict':<14}{'first cause':<30}{'rank':<6}{'step':<6}{'cost %':<8}result"
    lines = [head]
    for row in rows:
        lines.append(
            f"{row.name:<8}{row.truth or '(healthy)':<30}{row.verdict[:13]:<14}"
            f"{(row.causes[0] if row.causes else '-')[:29]:<30}{row.rank if row.sick and row.rank else '-':<6}"
            f"{'-' if row.proven_step is None else row.proven_step:<6}"
            f"{'-' if row.overhead is None else f'{row.overhead:.2f}':<8}{row.result}"
        )
    return "\n".join(lines)


def share(part: int, whole: int) -> str:
    return f"{part}/{whole} ({100 * part / whole:.0f} %)" if whole else "0/0"


def totals(rows: list[Row]) -> str:
    sick = [row for row in rows if row.sick]
    well = [row for row in rows if not row.sick]
    steps = [row.proven_step for row in sick if row.detected and row.proven_step is not None]
    costs = [row.overhead for row in rows if row.overhead is not None]
    lines = [
        f"sick called sick      {share(sum(r.detected for r in sick), len(sick))}",
        f"true cause first      {share(sum(r.first for r in sick), len(sick))}",
        f"among the first three {share(sum(r.among_three for r in sick), len(sick))}",
        f"false alarms          {share(sum(r.false_alarm for r in well), len(well))}",
        f"healthy inconclusive  {share(sum(r.verdict == 'inconclusive' for r in well), len(well))}",
        f"without a verdict     {sum(r.verdict in ('missing', 'unreadable') for r in rows)}",
    ]
    if steps:
        lines.append(
            f"steps to the proof    median {statistics.median(steps):g}, most {max(steps)}"
        )
    if costs:
        lines.append(
            f"own cost              median {statistics.median(costs):.2f} %, most {max(costs):.2f} %"
        )
    return "\n".join(lines)


def load_truth(path: Path) -> dict[str, dict[str, Any]]:
    loaded: dict[str, dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))
    return loaded


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="score verdicts against the truth")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--truth", type=Path, default=HERE / "truth.json")
    parser.add_argument("--only", help="comma separated names")
    parser.add_argument("--bar", nargs=3, type=float, metavar=("DETECTED", "FIRST", "ALARMS"))
    options = parser.parse_args(arguments)
    truth = load_truth(options.truth)
    names = options.only.split(",") if options.only else sorted(truth)
    rows = [read_row(name, truth[name], options.folder) for name in names]
    print(table(rows))
    print()
    print(totals(rows))
    if options.bar is None:
        return 0
    return 0 if meets(rows, *options.bar) else 1


def meets(rows: list[Row], detected: float, first: float, alarms: float) -> bool:
    sick = [row for row in rows if row.sick]
    return (
        sum(row.detected for row in sick) >= detected * len(sick)
        and sum(row.first for row in sick) >= first * len(sick)
        and sum(row.false_alarm for row in rows) <= alarms
    )


if __name__ == "__main__":
    sys.exit(main())
