"""Learning rates step by step, the settings of the groups, and what the schedulers were told to do."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from itertools import zip_longest
from typing import Any, ClassVar

import torch
from torch import Tensor

from traindoctor.events import Event, RateScheduled, StepBegin, StepEnd
from traindoctor.experiment.settings import betas_of
from traindoctor.probes.base import Cost
from traindoctor.record import RecordWriter

# Settings of a scheduler that say where it is going; what else depends on the object is not for the record.
SCHEDULE_SETTINGS = (
    "T_max", "T_0", "T_mult", "eta_min", "total_steps", "total_iters", "step_size", "gamma", "milestones",
    "start_factor", "end_factor", "factor", "patience", "power", "last_epoch", "base_lrs",
    "base_lr", "max_lr",
)  # fmt: skip
# How often the schedule's fact is written while it changes: the rates themselves are in the series.
WRITE_EVERY = 50


def rate_of(group: dict[str, Any]) -> float:
    """NaN for a rate that lies on a device: it would have to be waited for at every step."""
    rate = group.get("lr", float("nan"))
    if isinstance(rate, Tensor):
        return float(rate.detach()) if rate.device.type == "cpu" else float("nan")
    return float(rate)


def describe(optimizer: torch.optim.Optimizer, given: Sequence[float] = ()) -> dict[str, Any]:
    """Class and settings, group by group: plain data. `given`: the rates it was made with."""
    groups = []
    for group, rate in zip_longest(optimizer.param_groups, given[: len(optimizer.param_groups)]):
        settings = {
            key: float(value) if isinstance(value, Tensor) and value.numel() == 1 else value
            for key, value in group.items()
            if key != "params" and _plain(value)
        }
        if (betas := betas_of(group)) is not None:
            settings["betas"] = betas
        settings |= {
            "num_parameters": sum(p.numel() for p in group["params"]),
            "num_tensors": len(group["params"]),
            "dtypes": sorted({str(p.dtype).removeprefix("torch.") for p in group["params"]}),
        }
        settings |= {} if rate is None else {"given_lr": rate}
        groups.append(settings)
    return {"class": type(optimizer).__name__, "groups": groups}


def _plain(value: Any) -> bool:
    """Numbers and strings in lists that do not hold themselves: what a record can keep."""
    waiting, opened = [value], set()
    while waiting:
        one = waiting.pop()
        if isinstance(one, list | tuple) and id(one) not in opened:
            opened.add(id(one))
            waiting += one
        elif isinstance(one, Tensor):
            if one.numel() != 1:
                return False
        elif one is not None and not isinstance(one, bool | int | float | str):
            return False
    return True


class Scheduled:
    """One scheduler: how often it was stepped, when last, and what it drives."""

    def __init__(self, scheduler: Any, step: int) -> None:
        self.kind = type(scheduler).__name__
        self.created = step
        self.calls = 0
        self.last_step = step
        self.first_rate = float("nan")
        self.last_rate = float("nan")
        optimizer = getattr(scheduler, "optimizer", None)
        self.optimizer = (
            None if optimizer is None else id(getattr(optimizer, "optimizer", optimizer))
        )
        self.settings: dict[str, Any] = {}

    def stepped(self, scheduler: Any, rates: Sequence[float], step: int, missed: int = 0) -> None:
        self.calls += 1 + missed
        self.last_step = step
        if rates:
            self.last_rate = float(rates[0])
            if self.first_rate != self.first_rate:
                self.first_rate = self.last_rate
        self.settings = {
            key: value
            for key in SCHEDULE_SETTINGS
            if _plain(value := getattr(scheduler, key, None)) and value is not None
        }


class Rates:
    """The rate of each group before each step, exactly as the optimizer will use it."""

    name: ClassVar[str] = "rates"
    cost: ClassVar[Cost] = "free"
    every: ClassVar[int] = 1
    hears: ClassVar[tuple[type, ...]] = (
        StepBegin,
        StepEnd,
        RateScheduled,
    )

    def __init__(self) -> None:
        self._rates: list[float] = []
        self._written: list[float] = []
        self._optimizers: dict[int, dict[str, Any]] = {}
        self._stepped: dict[int, int] = {}
        self._schedulers: dict[int, Scheduled] = {}
        self._alive: dict[int, weakref.ref[Any]] = {}
        self._step = 0
        self._objects = 0
        self._groups_changed = self._schedule_changed = self._scheduled = False
        self._schedule_written = -WRITE_EVERY

    def on(self, event: Event, *, due: bool) -> None:
        if isinstance(event, StepBegin):
            self._step = event.step
            optimizer = event.optimizer
            self._rates = [rate_of(group) for group in optimizer.param_groups]
            self._stepped[id(optimizer)] = self._stepped.get(id(optimizer), 0) + 1
            if self._is_new(optimizer):
                self._objects += 1
                self._optimizers[id(optimizer)] = describe(optimizer, event.given_rates)
                self._groups_changed = True
        elif isinstance(event, StepEnd):
            for inside, _ in event.inside:
                self._stepped[id(inside)] = self._stepped.get(id(inside), 0) + 1
            if event.inside:
                self._rates = [rate for _, rates in event.inside for rate in rates]
        elif isinstance(event, RateScheduled):
            known = self._schedulers.get(id(event.scheduler))
            if known is None or known.kind != type(event.scheduler).__name__:
                known = self._schedulers[id(event.scheduler)] = Scheduled(
                    event.scheduler, self._step
                )
            known.stepped(event.scheduler, event.rates, self._step, event.missed)
            self._schedule_changed = self._scheduled = True

    def _is_new(self, optimizer: torch.optim.Optimizer) -> bool:
        """By identity, the object being alive: an address is used again after a free."""
        alive = self._alive.get(id(optimizer))
        if alive is not None and alive() is optimizer:
            return False
        self._alive[id(optimizer)] = weakref.ref(optimizer)
        return True

    def close_step(self, step: int, record: RecordWriter, *, due: bool) -> None:
        if self._rates:
            record.scalar("optim.lr", step, self._rates[0])
            if self._rates != self._written:
                # Rates that stand still need no new row: the last one holds until the next.
                names = [f"group {i}" for i in range(len(self._rates))]
                record.layers("optim.lr_by_group", step, names, self._rates)
                self._written = list(self._rates)
        if self._groups_changed:
            record.fact("optimizer.groups", list(self._optimizers.values())[-4:])
            record.scalar("optim.objects", step, self._objects)
            self._groups_changed = False
        if self._scheduled:
            calls = sum(scheduled.calls for scheduled in self._schedulers.values())
            record.scalar("schedule.calls", step, calls)
            self._scheduled = False
        if self._schedule_changed and step >= self._schedule_written + WRITE_EVERY:
            self.write_schedule(step, record)

    def finish(self, record: RecordWriter) -> None:
        if self._schedule_changed:
            self.write_schedule(self._step, record)

    def write_schedule(self, step: int, record: RecordWriter) -> None:
        record.fact("schedule", [self._described(s) for s in self._schedulers.values()])
        self._schedule_changed, self._schedule_written = False, step

    def _described(self, scheduled: Scheduled) -> dict[str, Any]:
        return {
            "class": scheduled.kind,
            "calls": scheduled.calls,
            "since_step": scheduled.created,
            "last_step": scheduled.last_step,
            "first_rate": scheduled.first_rate,
            "last_rate": scheduled.last_rate,
            "drives_a_stepped_optimizer": scheduled.optimizer in self._stepped
            if scheduled.optimizer is not None
            else None,
            **scheduled.settings,
        }
