"""What all framework callbacks share: a doctor that comes when training begins and leaves when it ends."""

from __future__ import annotations

import contextlib
import math
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from traindoctor.capture.hub import hub
from traindoctor.diagnosis import Diagnosis

if TYPE_CHECKING:
    from traindoctor.capture.watch import Watch
    from traindoctor.doctor import Doctor


class Attendance:
    """`begin()` and `end()` around the training; metrics that only the framework knows go to `metrics()`.

    Under `traindoctor run` the process is watched already: then only the metrics are added.
    """

    def __init__(
        self, *, out: Path | str | None = None, budget: float = 0.02, quiet: bool = False
    ) -> None:
        self.out = out
        self.budget = budget
        self.quiet = quiet
        self.doctor: Doctor | None = None
        self.diagnosis: Diagnosis | None = None
        self._exit = contextlib.ExitStack()
        self.expected: Any = None

    def begin(self, model: Any = None, optimizer: Any = None) -> None:
        if hub.sink is not None or self.doctor is not None:
            return
        from traindoctor.doctor import watch

        self.doctor = self._exit.enter_context(
            watch(model, optimizer, out=self.out, budget=self.budget, quiet=self.quiet)
        )

    @property
    def watch(self) -> Watch | None:
        """The watch of this process, ours or that of `traindoctor run`."""
        if self.doctor is not None:
            return self.doctor.watch
        from traindoctor.capture import arming

        return arming.watch

    def expect(self, total_steps: Any) -> None:
        """How many steps the framework means to make; told at each step, written once there is a record."""
        watch = self.watch
        if total_steps == self.expected or watch is None or not watch.has_record:
            return
        self.expected = total_steps
        if isinstance(total_steps, int) and total_steps > 0:
            watch.record_writer.fact("run.total_steps", total_steps)

    def metrics(self, values: Mapping[str, Any]) -> None:
        """Numbers of the framework's own log, with the step they belong to: `eval_loss` becomes `loss.eval`."""
        watch = self.watch
        if watch is None or not watch.has_record:
            return
        step = max(0, watch.step - 1)
        for name, value in values.items():
            number = scalar(value)
            if number is not None:
                series = "loss.eval" if name in EVALUATION else f"log.{name}"
                watch.record_writer.scalar(series, step, number)

    def end(self) -> Diagnosis | None:
        doctor, self.doctor = self.doctor, None
        if doctor is None:
            return self.diagnosis
        self._exit.close()
        self.diagnosis = doctor.diagnosis
        if self.diagnosis is not None and not self.quiet:
            from traindoctor.record import open_record
            from traindoctor.report.after_run import print_verdict

            folder = doctor.watch.out
            print_verdict(self.diagnosis, open_record(folder), sys.stderr, folder)
        return self.diagnosis


EVALUATION = frozenset({"eval_loss", "val_loss", "valid_loss", "validation_loss"})


def scalar(value: Any) -> float | None:
    """A plain number; a tensor is read only where it need not be waited for."""
    if isinstance(value, bool):
        return None
    device = getattr(value, "device", None)
    if device is not None and getattr(device, "type", "cpu") != "cpu":
        return None
    try:
        number = float(value)
    except (TypeError, ValueError):
        return None
    return number if not math.isnan(number) or isinstance(value, float) else None
