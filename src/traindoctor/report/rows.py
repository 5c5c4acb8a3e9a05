"""The rows of a picture by layer: in the model's own order, with a row for each parameter that has no numbers.

A series holds the parameters that were measured, in the order in which they were found. What is missing in it is often
the finding: a layer without gradient, a head that no optimizer holds.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from traindoctor.record import Record
from traindoctor.report.downsample import HeatMap

NO_GRADIENT, NO_OPTIMIZER, NOT_MEASURED = "no gradient", "in no optimizer", "not measured"
# Series of what gradients are, and of what an optimizer does with a parameter.
OF_GRADIENT, OF_OPTIMIZER = ("grad.",), ("update.", "adam.", "weight.rms")


def in_model_order(heat: HeatMap, name: str, record: Record) -> tuple[HeatMap, dict[str, str]]:
    """The picture with all trainable parameters of the model, and why those without numbers have none.

    Frozen parameters get no row, and a series of modules or groups stays as it is.
    """
    trainable = trainable_parameters(record)
    here = set(heat.layers)
    known = {own: row for row in trainable for own in row if own in here}
    if not known or not name.startswith((*OF_GRADIENT, *OF_OPTIMIZER, "weight.")):
        return heat, {}
    rows: list[str] = []
    for names in trainable:
        rows.append(next((own for own in names if own in here), names[0]))
    rows += [layer for layer in heat.layers if layer not in known]
    columns = {layer: column for column, layer in enumerate(heat.layers)}
    values = np.full((len(heat.steps), len(rows)), np.nan, np.float32)
    bad = np.zeros(values.shape, dtype=bool)
    for row, layer in enumerate(rows):
        if layer in columns:
            values[:, row] = heat.values[:, columns[layer]]
            bad[:, row] = heat.bad[:, columns[layer]]
    absent = [layer for layer in rows if layer not in here]
    return HeatMap(tuple(rows), heat.steps, values, bad), reasons(absent, name, record)


def trainable_parameters(record: Record) -> list[tuple[str, ...]]:
    """Of each trainable parameter its names (several where it is shared), in the order of the model."""
    listed = record.fact("model.parameters")
    found = []
    for one in listed if isinstance(listed, list) else []:
        if isinstance(one, Mapping) and isinstance(one.get("name"), str) and one.get("trainable"):
            tied = one.get("tied")
            more = [other for other in tied if isinstance(other, str)] if tied else []
            found.append((one["name"], *more))
    return found


def reasons(absent: list[str], name: str, record: Record) -> dict[str, str]:
    if name.startswith(OF_GRADIENT):
        return dict.fromkeys(absent, NO_GRADIENT)
    if not name.startswith(OF_OPTIMIZER):
        return dict.fromkeys(absent, NOT_MEASURED)
    held_by_none = names_in(record.fact("optimizer.coverage"), "missing")
    return {layer: NO_OPTIMIZER if layer in held_by_none else NO_GRADIENT for layer in absent}


def names_in(fact: Any, key: str) -> set[str]:
    listed = fact.get(key) if isinstance(fact, Mapping) else None
    return {
        str(one.get("name"))
        for one in (listed if isinstance(listed, list) else [])
        if isinstance(one, Mapping)
    }
