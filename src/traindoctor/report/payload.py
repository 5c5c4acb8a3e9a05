"""What the page reads, as plain data: the same for the live server and for a report that stands alone."""

import base64
import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from traindoctor.checks import BY_SLUG
from traindoctor.record import ExamResult, Record, Series
from traindoctor.record.progress import last_loss, num_steps
from traindoctor.record.writer import to_json
from traindoctor.report.across_ranks import rank_names, row_names
from traindoctor.report.checklist import measured_of, title_of
from traindoctor.report.downsample import (
    HeatMap,
    layer_names,
    layer_rows,
    mean,
    min_max,
    round_digits,
    window,
)
from traindoctor.report.excerpt import excerpt
from traindoctor.report.json import plain
from traindoctor.report.measured import Measured
from traindoctor.report.rows import in_model_order
from traindoctor.report.series_read import series_read

# 1: first form of the page's data.
FORMAT = 1
# Made here from recorded series: 1.0 at a step that clipping changed, 0.0 at one it left alone.
CLIPPED = "clip.clipped"
# A norm that clipping lowered by less is rounding, not clipping.
CLIP_TOLERANCE = 1e-4
# A fact such as the list of parameters may be long; the page shows the head of it.
MAX_ITEMS = 400

# Facts that no page shows: the verdict comes by itself, and a page may be given away where the script may not.
# Of the script it has the lines around those that a cause names.
NOT_SHOWN = {"verdict", "script.text"}
# Here NaN says that there is none; in every other series it is a number that went wrong.
NAN_IS_NONE = {"clip.limit"}
# Causes whose check is asked once more which series it reads.
MOST_FOLLOWED = 6


def run_payload(
    record: Record, *, name: str, state: str, verdict: Mapping[str, Any] | None
) -> dict[str, Any]:
    """All of a run but its numbers: verdict, facts, exams, notes and the names of its series."""
    payload = {
        "format": FORMAT,
        "name": name,
        "state": state,
        "steps": num_steps(record),
        "loss": loss_payload(record),
        "ranks": len(record.ranks),
        "created": record.meta.get("created"),
        "series": series_names(record),
        "layers": {
            **{name: layer_info(record, name) for name in layer_names(record)},
            **{
                name: {"layers": len(row_names(record)), "measured": True}
                for name in rank_names(record)
            },
        },
        "facts": {
            key: shorten(value) for key, value in record.facts.items() if key not in NOT_SHOWN
        },
        "exams": [exam_payload(result) for result in record.exam_results],
        "notes": [{"time": n.time, "level": n.level, "text": n.text} for n in record.notes],
        "verdict": None if verdict is None else with_pages(verdict, record),
    }
    plain: dict[str, Any] = json.loads(to_json(payload))
    return plain


def series_names(record: Record) -> list[str]:
    names = [name for name in record.names if name not in NAN_IS_NONE or len(record[name].finite())]
    if {"grad.norm", "clip.limit"} <= set(names):
        names.append(CLIPPED)
    return names


def loss_payload(record: Record) -> dict[str, Any] | None:
    """The number that every list of runs shows; NaN and infinity by their kind, because JSON has none."""
    loss = last_loss(record)
    if loss is None:
        return None
    finite = np.isfinite(loss.value)
    return {
        "measure": loss.measure,
        "step": loss.step,
        "value": loss.value if finite else kind_of(loss.value),
        "bad_since": loss.bad_since,
    }


def exam_payload(result: ExamResult) -> dict[str, Any]:
    """An active test in plain words: its title, and the number that a judgement rests on."""
    measured = measured_of(result) if result.done else None
    return {
        "exam": result.exam,
        "title": title_of(result.exam),
        "step": result.step,
        "outcome": result.outcome,
        "measured": None if measured is None else plain_measured(measured),
        "values": shorten(result.values),
        "reason": result.reason,
        "seconds": result.seconds,
    }


def layer_info(record: Record, name: str) -> dict[str, Any]:
    """How many layers, and whether anything was measured: counting all rows would take too long."""
    first = layer_rows(record, name, limit=1)
    return {"layers": len(first.layers), "measured": len(first) > 0}


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


def plain_measured(one: Measured) -> dict[str, Any]:
    return {
        "text": one.text,
        "value": plain(one.value),
        "expected": plain(one.expected),
        "noise": plain(one.noise),
    }


def with_pages(verdict: Mapping[str, Any], record: Record) -> dict[str, Any]:
    """The verdict with what the page shows beside each cause: its title and page, its line, the series it rests on."""
    extended = dict(verdict)
    for key in ("ruled_out", "untested", "not_applicable", "advice"):
        extended[key] = [with_title(item) for item in verdict.get(key) or []]
    extended["symptoms"] = [with_title(item) for item in verdict.get("symptoms") or []]
    causes = [with_title(item) for item in verdict.get("causes") or []]
    extended["causes"] = [
        {**item, **beside(item, record, follow=place < MOST_FOLLOWED)}
        if isinstance(item, Mapping)
        else item
        for place, item in enumerate(causes)
    ]
    return extended


def with_title(item: Any) -> Any:
    if not isinstance(item, Mapping) or item.get("cause") not in BY_SLUG:
        return item
    check = BY_SLUG[item["cause"]]
    return {**item, "code": check.code, "title": check.title}


def beside(cause: Mapping[str, Any], record: Record, *, follow: bool) -> dict[str, Any]:
    slug = cause.get("cause")
    check = BY_SLUG.get(slug) if isinstance(slug, str) else None
    if check is None:
        return {}
    lines = excerpt(record.fact("script.text"), cause.get("line"))
    return {
        "docs": check.docs,
        "series": series_read(check.slug, record) if follow else [],
        "source": [{"number": n, "text": text, "meant": meant} for n, text, meant in lines],
    }


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
    shared, norms, limits = in_order(norm).beside(in_order(limit))
    with np.errstate(invalid="ignore"):
        bites = norms > limits * (1 + CLIP_TOLERANCE)
    return Series(CLIPPED, shared, bites.astype(np.float64))


def encode(series: Series) -> dict[str, Any]:
    finite = np.isfinite(series.values)
    values: list[float | None] = round_digits(series.values).tolist()
    if series.name in NAN_IS_NONE:
        kept = [v if ok else None for v, ok in zip(values, finite.tolist())]
        return {"steps": series.steps.tolist(), "values": kept}
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


def heat_payload(record: Record, name: str, heat: HeatMap) -> dict[str, Any]:
    """Cells layer by layer as base64 of little-endian float32: a tenth of the time JSON numbers take.

    NaN: nothing was measured. Infinity: at least one value under the cell was infinite. `absent`: why a row has no cells.
    """
    heat, absent = in_model_order(heat, name, record)
    cells = np.where(heat.bad, np.float32(np.inf), heat.values).T.astype("<f4")
    return {
        "layers": list(heat.layers),
        "steps": heat.steps.tolist(),
        "cells": base64.b64encode(cells.tobytes()).decode(),
        "absent": absent,
    }
