"""Recording by hand, for trainers that are not PyTorch: a loop in C, CUDA, Go or JAX hands in its numbers.

    from traindoctor import Session
    session = Session("runs/mine")
    session.register_layer("wte", 50257 * 768)
    for step in range(steps):
        session.update_layer_gradients("wte", gradient)      # any array
        session.record_step(step, loss=loss, lr=rate, grad_norm=norm)
    session.print_diagnostics()

NumPy only: torch is not imported.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import IO, Any

import numpy as np

from traindoctor.capture.folders import new_folder
from traindoctor.diagnosis import Diagnosis, diagnose
from traindoctor.errors import TraindoctorError
from traindoctor.record import RecordWriter, open_record
from traindoctor.report.after_run import print_verdict

# Keyword of record_step -> series.
KEYWORDS: dict[str, str] = {
    "loss": "loss.root",
    "eval_loss": "loss.eval",
    "lr": "optim.lr",
    "grad_norm": "grad.norm",
    "grad_norm_clipped": "grad.norm_clipped",
    "clip": "clip.limit",
    "param_norm": "param.norm",
    "update_norm": "update.norm",
    "tokens": "batch.tokens",
    "seconds": "time.step",
    "scale": "scaler.scale",
    "skipped": "scaler.skipped",
}


class Session:
    """One run, fed by hand. Use it as a context manager, or call `close()`."""

    def __init__(self, out: Path | str | None = None, *, name: str = "session") -> None:
        self.folder = new_folder(name, None if out is None else str(out))
        self.writer = RecordWriter(self.folder)
        self._layers: dict[str, int] = {}
        self._gradients: dict[str, tuple[float, float, float, float]] = {}
        self._weights: dict[str, tuple[float, float]] = {}
        self._last_step = -1
        self._steps = 0
        self._closed = False

    def register_layer(self, name: str, num_params: int) -> None:
        """Names a layer before its first numbers; the size is checked against what comes."""
        if num_params <= 0:
            raise TraindoctorError(
                f"layer {name!r}: num_params must be positive, {num_params} came"
            )
        if self._steps:
            raise TraindoctorError(f"layer {name!r}: register all layers before the first step")
        self._layers[name] = int(num_params)
        self.writer.fact(
            "model.parameters",
            [
                {"name": n, "shape": [size], "dtype": "", "trainable": True, "tied": []}
                for n, size in self._layers.items()
            ],
        )

    def update_layer_gradients(self, name: str, gradient: Any) -> None:
        """The gradient of a layer in the step that `record_step` closes next."""
        values = self._array(name, gradient)
        self._gradients[name] = (
            float(np.sqrt(np.mean(np.square(values)))),
            float(np.max(np.abs(values))),
            float(np.mean(values == 0)),
            float(np.sum(~np.isfinite(values))),
        )

    def update_layer_weights(self, name: str, weights: Any) -> None:
        """The weights of a layer after the step."""
        values = self._array(name, weights)
        self._weights[name] = (
            float(np.sqrt(np.mean(np.square(values)))),
            float(np.max(np.abs(values))),
        )

    def record_step(self, step: int, **numbers: float) -> None:
        """`record_step(7, loss=3.2, lr=1e-3, grad_norm=0.8)`; unknown keywords become `log.<name>`."""
        if self._closed:
            raise TraindoctorError("this session is closed; make a new one")
        if step <= self._last_step:
            raise TraindoctorError(f"steps must rise: {step} came after {self._last_step}")
        self._last_step = int(step)
        self._steps += 1
        self.writer.scalars(
            step,
            {
                KEYWORDS.get(name, f"log.{name}"): float(value)
                for name, value in numbers.items()
                if value is not None
            },
        )
        self._write_layers(step, numbers)

    def _write_layers(self, step: int, numbers: Mapping[str, float]) -> None:
        names = list(self._layers)
        nothing = (math.nan,) * 4
        if self._gradients:
            rows = [self._gradients.get(name, nothing) for name in names]
            for column, series in enumerate(("grad.rms", "grad.absmax", "grad.zeros")):
                self.writer.layers(series, step, names, [row[column] for row in rows])
            self.writer.scalar(
                "grad.nonfinite", step, sum(row[3] for row in self._gradients.values())
            )
            if "grad_norm" not in numbers and len(self._gradients) == len(names):
                total = sum(self._layers[name] * self._gradients[name][0] ** 2 for name in names)
                self.writer.scalar("grad.norm", step, math.sqrt(total))
        if self._weights:
            rows_ = [self._weights.get(name, nothing[:2]) for name in names]
            for column, series in enumerate(("weight.rms", "weight.absmax")):
                self.writer.layers(series, step, names, [row[column] for row in rows_])
        self._gradients, self._weights = {}, {}

    def _array(self, name: str, values: Any) -> np.ndarray[Any, np.dtype[np.float64]]:
        if name not in self._layers:
            known = ", ".join(self._layers) or "none"
            raise TraindoctorError(f"no layer {name!r} was registered; registered are: {known}")
        array = np.asarray(values, dtype=np.float64).reshape(-1)
        if array.size != self._layers[name]:
            raise TraindoctorError(
                f"layer {name!r} has {self._layers[name]} parameters, {array.size} numbers came"
            )
        return array

    def diagnose(self) -> Diagnosis:
        """Judges what was recorded so far."""
        self.writer.fact("run.steps", self._steps)
        self.writer.flush()
        return diagnose(open_record(self.folder))

    def print_diagnostics(self, file: IO[str] | None = None) -> Diagnosis:
        """Prints the verdict on what was recorded so far, and gives it."""
        diagnosis = self.diagnose()
        print_verdict(diagnosis, open_record(self.folder), file or sys.stdout, self.folder)
        return diagnosis

    def close(self) -> None:
        """Ends the run; a second call does nothing."""
        if not self._closed:
            self._closed = True
            self.writer.fact("run.steps", self._steps)
            self.writer.fact("run.ended", 0)
            self.writer.close()

    def __enter__(self) -> Session:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
