"""What the page reads, as plain data: the same for the live server and for a report that stands alone."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from traindoctor.checks import BY_SLUG
from traindoctor.record import Record, Series
from traindoctor.record.writer import to_json
from traindoctor.report.downsample import (
    HeatMap,
    layer_names,
    layer_rows,
    mean,
    min_max,
    round_digits,
    window,
)

# 1: first form of the page's data.
FORMAT = 1
# Made here from recorded series: 1.0 at a step that clipping changed, 0.0 at one it left alone.
CLIPPED = "clip.clipped"
# A norm that clipping lowered by less is rounding, not clipping.
CLIP_TOLERANCE = 1e-4
# The first of these that a record has tells how far the run is.
PACE = ("loss.root", "loss.token", "loss.read", "grad.norm", "optim.lr", "time.step")
# The loss a reader means, best first.
LOSS = ("loss.token", "loss.read", "loss.root")
# A fact such as the list of parameters may be long; the page shows the head of it.
MAX_ITEMS = 400

# Facts that no page shows: the verdict comes by itself, and a page may be given away where the script may not.
NOT_SHOWN = {"verdict", "script.text"}


def run_payload(
    record: Record, *, name: str, state: str, verdict: Mapping[str, Any] | None
) -> dict[str, Any]:
    """All of a run but its numbers: verdict, facts, exams, notes and the names of its series."""
    payload = {
        "format": FORMAT,
        "name": name,
        "state": state,
        "steps": num_steps(record),
        "ranks": len(record.ranks),
        "created": record.meta.get("created"),
        "series": series_names(record),
        "layers": {name: layer_info(record, name) for name in layer_names(record)},
        "facts": {
            key: shorten(value) for key, value in record.facts.items() if key not in NOT_SHOWN
        },
        "exams": [
            {
                "exam": result.exam,
                "step": result.step,
                "outcome": result.outcome,
                "values": shorten(result.values),
                "reason": result.reason,
                "seconds": result.seconds,
            }
            for result in record.exam_results
        ],
        "notes": [{"time": n.time, "level": n.level, "text": n.text} for n in record.notes],
        "verdict": None if verdict is None else with_pages(verdict),
    }
    plain: dict[str, Any] = json.loads(to_json(payload))
    return plain


def series_names(record: Record) -> list[str]:
    names = list(record.names)
    if {"grad.norm", "clip.limit"} <= set(names):
        names.append(CLIPPED)
    return names


def layer_info(record: Record, name: str) -> dict[str, Any]:
    """How many layers, and whether anything was measured: counting all rows would take too long."""
    first = layer_rows(record, name, limit=1)
    return {"layers": len(first.layers), "measured": len(first) > 0}


def num_steps(record: Record) -> int:
    """Steps so far, from one series instead of from all of them."""
    for name in PACE:
        series = record.get(name)
        if series is not None and len(series):
            return int(series.steps[-1]) + 1
    return record.num_steps


def main_loss(record: Record) -> Series | None:
    return next((s for name in LOSS if (s := record.get(name)) is not None and len(s)), None)


def shorten(value: Any) -> Any:
    """Long lists keep their head, with a last item that says how many are left out."""
    if isinstance(value, Mapping):
        items = list(value.items())
        short = {str(k): shorten(v) for k, v in items[:MAX_ITEMS]}
        if len(items) > MAX_ITEMS:
            short["..."] = f"{len(items) - MAX_ITEMS} more"
        return short
    if isinstance(value, list | tuple):
        short_list = [shorten(v) for v in value[:MAX_ITEMS]]
        return (
            [*short_list, f"... {len(value) - MAX_ITEMS} more"]
            if len(value) > MAX_ITEMS
            else short_list
        )
    return value


def with_pages(verdict: Mapping[str, Any]) -> dict[str, Any]:
    """The verdict with each cause's page and the series it was judged by, so that it can be linked."""

    def page(item: Any) -> Any:
        if not isinstance(item, Mapping) or item.get("cause") not in BY_SLUG:
            return item
        check = BY_SLUG[item["cause"]]
        return {
            **item,
            "code": check.code,
            "title": check.title,
            "docs": check.docs,
            "needs": [*check.needs, *check.wants],
        }

    extended = dict(verdict)
    for key in ("causes", "symptoms"):
        extended[key] = [page(item) for item in verdict.get(key) or []]
    return extended


def series_payload(
    record: Record,
    names: Sequence[str],
    *,
    start: float | None = None,
    stop: float | None = None,
    points: int,
) -> dict[str, Any]:
    """Down-sampled series between two steps. NaN and infinity are null, with their kind in `bad`."""
    return {
        name: encode(reduced)
        for name in names
        if (reduced := reduced_series(record, name, start, stop, points)) is not None
    }


def reduced_series(
    record: Record, name: str, start: float | None, stop: float | None, points: int
) -> Series | None:
    if name == CLIPPED:
        clipped = clipped_steps(record)
        return None if clipped is None else mean(window(clipped, start, stop), points // 4)
    series = record.get(name)
    return None if series is None else min_max(window(in_order(series), start, stop), points)


def in_order(series: Series) -> Series:
    """A resumed run goes back in time: the later value of a step counts, as on a plotter's paper."""
    if len(series) < 2 or bool(np.all(np.diff(series.steps) > 0)):
        return series
    steps, index = np.unique(series.steps[::-1], return_index=True)
    return Series(series.name, steps, series.values[::-1][index])


def clipped_steps(record: Record) -> Series | None:
    norm, limit = record.get("grad.norm"), record.get("clip.limit")
    if norm is None or limit is None:
        return None
    norm, limit = in_order(norm), in_order(limit)
    shared, at_norm, at_limit = np.intersect1d(norm.steps, limit.steps, return_indices=True)
    with np.errstate(invalid="ignore"):
        bites = norm.values[at_norm] > limit.values[at_limit] * (1 + CLIP_TOLERANCE)
    return Series(CLIPPED, shared, bites.astype(np.float64))


def encode(series: Series) -> dict[str, Any]:
    finite = np.isfinite(series.values)
    values: list[float | None] = round_digits(series.values).tolist()
    coded: dict[str, Any] = {"steps": series.steps.tolist(), "values": values}
    if not finite.all():
        bad = []
        for index in np.flatnonzero(~finite).tolist():
            bad.append([int(series.steps[index]), kind_of(float(series.values[index]))])
            values[index] = None
        coded["bad"] = bad
    return coded


def kind_of(value: float) -> str:
    return "NaN" if value != value else "inf" if value > 0 else "-inf"


def heat_payload(heat: HeatMap) -> dict[str, Any]:
    """Cells layer by layer as base64 of little-endian float32: a tenth of the time JSON numbers take.

    NaN: nothing was measured. Infinity: at least one value under the cell was infinite.
    """
    cells = np.where(heat.bad, np.float32(np.inf), heat.values).T.astype("<f4")
    return {
        "layers": list(heat.layers),
        "steps": heat.steps.tolist(),
        "cells": base64.b64encode(cells.tobytes()).decode(),
    }
