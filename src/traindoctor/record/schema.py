"""The record: what was measured, as plain numbers and facts. No torch on this side of it."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

# 1: first format (2026-11).
FORMAT = 1

Made = TypeVar("Made")
Outcome = Literal["done", "refused", "not-applicable", "failed"]


@dataclass(frozen=True)
class Series:
    """One number per step, at the steps where it was measured."""

    name: str
    steps: NDArray[np.int64]
    values: NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.steps)

    def __iter__(self) -> Iterator[tuple[int, float]]:
        return zip(self.steps.tolist(), self.values.tolist())

    @property
    def first(self) -> float:
        return float(self.values[0])

    @property
    def last(self) -> float:
        return float(self.values[-1])

    def take(self, mask: NDArray[np.bool_]) -> Series:
        return Series(self.name, self.steps[mask], self.values[mask])

    def where(self, keep: Callable[[NDArray[np.float64]], NDArray[np.bool_]]) -> Series:
        """The points whose value satisfies `keep`, a function of the whole array."""
        return self.take(keep(self.values))

    def finite(self) -> Series:
        return self.take(np.isfinite(self.values))

    def after(self, step: int) -> Series:
        """The points at `step` and later."""
        return self.take(self.steps >= step)

    def before(self, step: int) -> Series:
        return self.take(self.steps < step)

    def beside(
        self, other: Series
    ) -> tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.float64]]:
        """The steps that both have, its own values there and the other's."""
        steps, own, theirs = np.intersect1d(self.steps, other.steps, return_indices=True)
        return steps, self.values[own], other.values[theirs]

    def with_more_of(self, other: Series) -> Series:
        """With the other's points at the steps at which it has none itself."""
        more = other.take(~np.isin(other.steps, self.steps))
        steps = np.concatenate([self.steps, more.steps])
        order = np.argsort(steps, kind="stable")
        values = np.concatenate([self.values, more.values])
        return Series(self.name, steps[order], values[order])

    def tail(self, count: int) -> Series:
        return Series(self.name, self.steps[-count:], self.values[-count:])

    def at(self, step: int) -> float | None:
        found = np.flatnonzero(self.steps == step)
        return float(self.values[found[-1]]) if len(found) else None

    def median(self) -> float:
        return float(np.median(self.values)) if len(self) else float("nan")


@dataclass(frozen=True)
class LayerSeries:
    """One row of numbers per sampled step, a column for each layer (parameter, module or group)."""

    name: str
    layers: tuple[str, ...]
    steps: NDArray[np.int64]
    values: NDArray[np.float32]  # (steps, layers); NaN where a layer had nothing to measure

    def __len__(self) -> int:
        return len(self.steps)

    def layer(self, name: str) -> Series:
        column = self.values[:, self.layers.index(name)].astype(np.float64)
        return Series(f"{self.name}[{name}]", self.steps, column)

    def row(self, index: int = -1) -> dict[str, float]:
        return dict(zip(self.layers, (float(v) for v in self.values[index])))

    def take(self, mask: NDArray[np.bool_]) -> LayerSeries:
        return LayerSeries(self.name, self.layers, self.steps[mask], self.values[mask])

    def after(self, step: int) -> LayerSeries:
        """The rows at `step` and later."""
        return self.take(self.steps >= step)

    def medians(self) -> NDArray[np.float64]:
        """By layer, over the steps that have a number; NaN where none has."""
        if len(self) and not np.isnan(self.values).any():
            return np.median(self.values, axis=0).astype(np.float64)
        columns = (column[~np.isnan(column)] for column in self.values.T)
        return np.array([float(np.median(c)) if len(c) else np.nan for c in columns])


@dataclass(frozen=True)
class ExamResult:
    """What an exam measured. `values` is JSON: numbers, strings, lists, dicts."""

    exam: str
    step: int
    outcome: Outcome
    values: Mapping[str, Any] = field(default_factory=dict)
    reason: str = ""
    seconds: float = 0.0

    @property
    def done(self) -> bool:
        return self.outcome == "done"


@dataclass(frozen=True)
class Note:
    """Something the recorder says about itself or the run: 'info', 'warning' or 'fault'."""

    time: float
    level: str
    text: str


class Record:
    """All that is known of a run (of one rank; `ranks` has every rank's, this one included).

    `record["grad.norm"]` is a Series, `record.layers("grad.rms")` a LayerSeries, `record.facts` plain
    data, `record.exam("tape_gradient")` the latest result of an exam.
    """

    def __init__(
        self,
        *,
        series: Mapping[str, Series] | None = None,
        layers: Mapping[str, LayerSeries] | None = None,
        facts: Mapping[str, Any] | None = None,
        exams: Sequence[ExamResult] = (),
        notes: Sequence[Note] = (),
        meta: Mapping[str, Any] | None = None,
        ranks: Sequence[Record] = (),
    ) -> None:
        self._series = dict(series or {})
        self._layers = dict(layers or {})
        self.facts: dict[str, Any] = dict(facts or {})
        self.exam_results: tuple[ExamResult, ...] = tuple(exams)
        self.notes: tuple[Note, ...] = tuple(notes)
        self.meta: dict[str, Any] = dict(meta or {})
        self.ranks: Sequence[Record] = ranks or (self,)
        self._made: dict[Any, Any] = {}

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(sorted(self._series))

    @property
    def layer_names(self) -> tuple[str, ...]:
        return tuple(sorted(self._layers))

    def has(self, name: str) -> bool:
        return name in self.names or name in self.layer_names

    def __getitem__(self, name: str) -> Series:
        found = self.get(name)
        if found is None:
            raise KeyError(name)
        return found

    def get(self, name: str) -> Series | None:
        return self._series.get(name)

    def layers(self, name: str) -> LayerSeries | None:
        return self._layers.get(name)

    def layer_rows(
        self, name: str, *, start: int = 0, stop: int | None = None, limit: int = -1
    ) -> LayerSeries:
        """The rows of steps start..stop of a layer series (both included), at most `limit`."""
        series = self.layers(name)
        assert series is not None
        keep = np.flatnonzero((series.steps >= start) & (series.steps <= (stop or 2**62)))
        keep = keep if limit < 0 else keep[:limit]
        return LayerSeries(name, series.layers, series.steps[keep], series.values[keep])

    def layer_span(self, name: str) -> tuple[tuple[str, ...], int, int, int]:
        """Columns, number of rows, first and last step of a layer series."""
        series = self.layers(name)
        assert series is not None
        ends = (int(series.steps[0]), int(series.steps[-1])) if len(series) else (0, 0)
        return series.layers, len(series), *ends

    def once(self, make: Callable[..., Made], *arguments: Hashable) -> Made:
        """`make(record, *arguments)`, made once for all who ask (until more has come)."""
        key = make, *arguments
        if key not in self._made:
            self._made[key] = make(self, *arguments)
        found: Made = self._made[key]
        return found

    def fact(self, name: str, default: Any = None) -> Any:
        return self.facts.get(name, default)

    def exam(self, name: str) -> ExamResult | None:
        """The latest result of an exam that was done; if none was, the latest refusal."""
        results = self.exams(name)
        done = [r for r in results if r.done]
        found = done or results
        return found[-1] if found else None

    def exams(self, name: str) -> list[ExamResult]:
        return [r for r in self.exam_results if r.exam == name]

    @property
    def num_steps(self) -> int:
        """Optimizer steps seen."""
        return int(self.facts.get("run.steps", 0)) or self._counted_steps()

    def _counted_steps(self) -> int:
        longest = [int(s.steps[-1]) + 1 for n in self.names if (s := self.get(n)) and len(s)]
        return max(longest, default=0)


def make_record(
    series: Mapping[str, Sequence[float]] | None = None,
    *,
    facts: Mapping[str, Any] | None = None,
    exams: Mapping[str, Mapping[str, Any]] | Sequence[ExamResult] = (),
    layers: Mapping[str, Mapping[str, Sequence[float]]] | None = None,
    ranks: Sequence[Record] = (),
) -> Record:
    """A record from hand-written numbers: `make_record({"grad.norm": [1.0, 2.0]})`, steps 0, 1, ..."""

    def steps(count: int) -> NDArray[np.int64]:
        return np.arange(count, dtype=np.int64)

    made_layers = {}
    for name, columns in (layers or {}).items():
        table = np.array(list(columns.values()), dtype=np.float32).T
        made_layers[name] = LayerSeries(name, tuple(columns), steps(len(table)), table)
    if isinstance(exams, Mapping):
        exams = [ExamResult(name, 0, "done", values) for name, values in exams.items()]
    return Record(
        series={
            name: Series(name, steps(len(values)), np.asarray(values, dtype=np.float64))
            for name, values in (series or {}).items()
        },
        layers=made_layers,
        facts=facts,
        exams=exams,
        ranks=ranks,
    )
