"""How two runs were set, and where they ran: what their records know of it, by the names that a user would look for."""

import math
import shlex
from collections.abc import Mapping
from typing import Any

from traindoctor.compare.run_rows import Cell, Row, cell_of, dict_of, dicts_of, list_of, rows_of
from traindoctor.record import Record, Series

# Of a scheduler, what a run did with it and not how it was set.
COURSE = frozenset(
    "calls since_step last_step first_rate last_rate drives_a_stepped_optimizer".split()
)
GROUP = {
    "given_lr": "lr it was made with",
    "num_parameters": "parameters",
    "num_tensors": "tensors",
}
ENVIRONMENT = {
    "python": "Python",
    "torch": "PyTorch",
    "cpus": "CPU cores",
    "deterministic": "deterministic algorithms",
}
# What is the same at this share of the steps is a setting; the last batch of a pass may be smaller.
USUAL = 0.8


def setting_rows(a: Record, b: Record) -> tuple[Row, ...]:
    tensors = rows_of(_tensors(a), _tensors(b))
    modules = rows_of(_modules(a), _modules(b))
    known = all(r.fact("model.parameters") is not None for r in (a, b))
    parts = [row for row in (*modules, *tensors) if row.differs] if known else []
    return (*rows_of(settings(a), settings(b)), *parts)


def settings(record: Record) -> dict[str, Cell]:
    """How the run was set: what a record knows of it, by the name that a user would look for."""
    told: dict[str, Cell] = {}
    script = dict_of(record.fact("script"))
    if script:
        told["arguments"] = shlex.join(map(str, list_of(script.get("argv")))) or "none"
    told["steps"] = record.num_steps
    told["steps planned"] = cell_of(record.fact("run.total_steps"))
    optimizers = dicts_of(record.fact("optimizer.groups"))
    for number, optimizer in enumerate(optimizers):
        of = f" {number}" if len(optimizers) > 1 else ""
        told[f"optimizer{of}"] = cell_of(optimizer.get("class"))
        told |= _groups(dicts_of(optimizer.get("groups")), f"optimizer{of}: " if of else "")
    for number, schedule in enumerate(dicts_of(record.fact("schedule"))):
        name = f"scheduler {number}" if number else "scheduler"
        told[name] = cell_of(schedule.get("class"))
        told |= {
            f"{name}: {key}": cell_of(value)
            for key, value in schedule.items()
            if key != "class" and key not in COURSE
        }
    clip = dict_of(record.fact("clip"))
    told["clipping"] = cell_of(clip.get("kind"))
    told["clipping limit"] = cell_of(clip.get("limit"))
    told |= {
        name if name.startswith("loss") else f"loss: {name}": cell_of(value)
        for name, value in _loss(record).items()
    }
    told["batch rows"] = _usual(record.get("batch.rows"))
    told["backward passes per step"] = _usual(record.get("backward.calls"))
    told["batches in the loader"] = cell_of(record.fact("loader.batches"))
    return {**told, **_model(record)}


def _groups(groups: list[Mapping[str, Any]], lead: str) -> dict[str, Cell]:
    return {
        f"{lead}{f'group {number}: ' if len(groups) > 1 else ''}{GROUP.get(key, key)}": cell_of(
            value
        )
        for number, group in enumerate(groups)
        for key, value in group.items()
    }


def _loss(record: Record) -> dict[str, Any]:
    site = dict_of(record.fact("loss.site"))
    kept = ("classes", "reduction", "ignore_index", "label_smoothing")
    kind = {"loss function": site["kind"]} if "kind" in site else {}
    return kind | {key: site[key] for key in kept if key in site}


def _model(record: Record) -> dict[str, Cell]:
    parameters = dicts_of(record.fact("model.parameters"))
    told: dict[str, Cell] = {}
    if parameters:
        sizes = [
            math.prod(n for n in list_of(p.get("shape")) if isinstance(n, int)) for p in parameters
        ]
        told["model parameters"] = sum(sizes)
        told["trainable parameters"] = sum(
            n for n, p in zip(sizes, parameters) if p.get("trainable")
        )
        told["parameter dtypes"] = ", ".join(sorted({str(p.get("dtype")) for p in parameters}))
    environment = dict_of(record.fact("env"))
    if environment:
        told["loss scaling"] = record.has("scaler.scale")
        told["TF32 matmul"] = cell_of(environment.get("tf32"))
    return told


def _tensors(record: Record) -> dict[str, Cell]:
    def said(one: Mapping[str, Any]) -> str:
        shape = " x ".join(map(str, list_of(one.get("shape")))) or "scalar"
        tied = f", tied to {', '.join(map(str, list_of(one['tied'])))}" if one.get("tied") else ""
        frozen = ", frozen" if one.get("trainable") is False else ""
        return f"{shape} {one.get('dtype', '')}".strip() + frozen + tied

    found = dicts_of(record.fact("model.parameters"))
    return {f"parameter {one.get('name')}": said(one) for one in found}


def _modules(record: Record) -> dict[str, Cell]:
    """Classes only: sizes are said of the parameters."""
    lines = (str(line).partition(": ") for line in list_of(record.fact("model.tree")))
    return {f"module {name}": kind.split(" ")[0] for name, _, kind in lines if kind}


def environment_rows(a: Record, b: Record) -> tuple[Row, ...]:
    return rows_of(_environment(a), _environment(b))


def _environment(record: Record) -> dict[str, Cell]:
    env = dict_of(record.fact("env"))
    told: dict[str, Cell] = {
        ENVIRONMENT.get(key, key): cell_of(value)
        for key, value in env.items()
        if key not in ("libraries", "tf32")
    }
    told |= {str(name): cell_of(value) for name, value in dict_of(env.get("libraries")).items()}
    if env:
        told["ranks"] = cell_of(dict_of(record.fact("ranks")).get("world", 1))
    log = dict_of(record.fact("imported"))
    return told | ({"read from the log": cell_of(log.get("from"))} if log else {})


def _usual(series: Series | None) -> Cell:
    """What most steps have."""
    if series is None or not len(series):
        return None
    middle = series.median()
    return middle if (series.values == middle).mean() >= USUAL else "varies"
