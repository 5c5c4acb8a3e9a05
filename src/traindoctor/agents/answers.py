"""Verdicts, comparisons and series as small answers: what an agent acts on, without the bulk."""

import math
from collections.abc import Mapping
from typing import Any

from traindoctor.compare.runs import RunComparison
from traindoctor.record import Record
from traindoctor.record.progress import main_loss
from traindoctor.record.runs import Run
from traindoctor.report.json import plain
from traindoctor.report.payload import series_names, series_payload

MOST_CAUSES, MOST_EVIDENCE, MOST_NOTES, MOST_UNTESTED = 3, 3, 3, 8
MOST_POINTS, USUAL_POINTS = 500, 100
MOST_DIFF_LINES = 60
OF_A_CAUSE = (
    "cause status confidence law where line since_step summary remedy fix consequences".split()
)
OF_A_VERDICT = "verdict reason decides steps coverage reproduce verified".split()


def verdict(full: Mapping[str, Any]) -> dict[str, Any]:
    """The verdict's JSON (report/verdict.schema.json) without its bulky parts."""
    causes = [one for one in full["causes"] if not one["explained_by"]]
    return {
        **{name: full[name] for name in OF_A_VERDICT},
        "causes": [cause(one) for one in causes[:MOST_CAUSES]],
        "more_causes": [one["cause"] for one in causes[MOST_CAUSES:]],
        "symptoms": [one["summary"] for one in full["symptoms"]],
        "advice": [f"{one['cause']}: {one['summary']}" for one in full["advice"]],
        "untested": [
            f"{one['cause']}: {one['sentence']}" for one in full["untested"][:MOST_UNTESTED]
        ],
        "notes": list(full["notes"][:MOST_NOTES]),
    }


def cause(one: Mapping[str, Any]) -> dict[str, Any]:
    evidence = [
        {name: item[name] for name in ("measure", "value", "expected", "step")}
        for item in one["evidence"][:MOST_EVIDENCE]
    ]
    return {**{name: one[name] for name in OF_A_CAUSE}, "evidence": evidence}


def comparison(found: RunComparison) -> dict[str, Any]:
    """What differs, and what changed in the script."""
    full = found.as_dict()
    sections = ("verdict", "laws", "curves", "settings", "environment")
    differing = {
        name: [
            {key: row[key] for key in ("name", "a", "b")} for row in full[name] if row["differs"]
        ]
        for name in sections
    }
    diff = full["script"]["diff"]
    return {
        **{name: full[name] for name in ("headline", "different", "remarks", "losses")},
        **differing,
        "script": full["script"]["said"],
        "script_diff": "\n".join(diff[:MOST_DIFF_LINES]),
        "script_diff_lines_left_out": max(0, len(diff) - MOST_DIFF_LINES),
    }


def run(one: Run, name: str) -> dict[str, Any]:
    return {
        "run": name,
        "verdict": one.verdict,
        "causes": list(one.causes[:MOST_CAUSES]),
        "steps": one.steps,
        "loss": plain(one.loss),
        "ended": "running or killed" if one.ended is None else plain(one.ended),
        "problem": one.problem,
    }


def series(
    record: Record, name: str, *, points: int, start: float | None, stop: float | None
) -> dict[str, Any] | None:
    """One series in at most so many points: the lowest and the highest of each stretch."""
    found = series_payload(
        record, [name], start=start, stop=stop, points=max(2, min(points, MOST_POINTS))
    )
    one = found.get(name)
    if one is None:
        return None
    whole = record.get(name)
    # A plot is given the neighbours of its window as well.
    low, high = -math.inf if start is None else start, math.inf if stop is None else stop
    rows = [(s, v) for s, v in zip(one["steps"], one["values"]) if low <= s <= high]
    return {
        "name": name,
        "points_recorded": len(whole) if whole is not None else len(one["steps"]),
        "steps": [step for step, _ in rows],
        "values": [value for _, value in rows],
        "not_finite": [bad for bad in one.get("bad", []) if low <= bad[0] <= high],
    }


def names_of(record: Record) -> list[str]:
    return sorted(series_names(record))


def progress(record: Record) -> tuple[int, str] | None:
    """Steps so far, and a sentence; None before the first loss."""
    loss = main_loss(record)
    if loss is None:
        return None
    step = int(loss.steps[-1]) + 1
    proven = record.fact("doctor.proven", {})
    found = ", ".join(proven) if isinstance(proven, Mapping) and proven else "nothing found so far"
    return step, f"step {step}, loss {loss.last:.4g}: {found}"
