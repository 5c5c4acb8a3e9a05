"""Losses of the last steps: left on the device, read together, written down and told."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from traindoctor.errors import TraindoctorError
from traindoctor.lm.callbacks import Callbacks, Progress
from traindoctor.lm.distributed import World
from traindoctor.lm.metrics import MetricsFile

# Losses stay on the device and are read together: waiting for a GPU at every step costs about 2 %.
READ_EVERY = 10


@dataclass(kw_only=True)
class Readings:
    """All ranks hold one; rank 0 writes metrics.csv and tells the caller."""

    run: Path
    world: World
    callbacks: Callbacks
    metrics: MetricsFile | None
    """rank 0's"""
    tokens_per_step: int
    total_steps: int
    seconds: Callable[[], float]
    """this rank's clock: seconds of training"""
    share: Callable[[float], float]
    """seconds of training -> share of the run that is over"""
    last_loss: float = math.nan
    _unread: list[dict[str, Any]] = field(default_factory=list)
    _last_read: tuple[int, float] | None = None

    def add(self, *, step: int, lr: float, loss: Tensor, grad_norm: Tensor) -> None:
        """One more step; nobody waits for its numbers but once in READ_EVERY steps."""
        self._unread.append({"step": step, "lr": lr, "loss": loss, "grad_norm": grad_norm})
        if len(self._unread) == READ_EVERY:
            self.read()

    def read(self) -> None:
        """Brings the losses of the last steps to the host, all at once, and tells them."""
        if not self._unread:
            return
        losses = self.world.mean(torch.stack([row["loss"] for row in self._unread])).tolist()
        norms = torch.stack([row["grad_norm"] for row in self._unread]).tolist()
        seconds = self.seconds()
        rows = [
            {
                **row,
                "loss": loss,
                "grad_norm": norm,
                "seconds": round(seconds, 3),
                "tokens": (row["step"] + 1) * self.tokens_per_step,
            }
            for row, loss, norm in zip(self._unread, losses, norms)
        ]
        self._unread.clear()
        self.last_loss = losses[-1]
        if self.metrics is not None:
            self.metrics.add(rows)
            self.callbacks.on_progress(self._progress(rows[-1], seconds))
        self._refuse_nonfinite(rows)

    def _progress(self, row: dict[str, Any], seconds: float) -> Progress:
        before, self._last_read = self._last_read, (row["step"], seconds)
        speed = math.nan
        if before and seconds > before[1]:
            speed = (row["step"] - before[0]) * self.tokens_per_step / (seconds - before[1])
        return Progress(
            step=row["step"] + 1,
            total_steps=self.total_steps,
            loss=row["loss"],
            lr=row["lr"],
            grad_norm=row["grad_norm"],
            seconds=seconds,
            tokens_per_second=speed,
            # By this rank's clock: the others are not here to be asked.
            share=self.share(seconds),
        )

    def _refuse_nonfinite(self, rows: list[dict[str, Any]]) -> None:
        bad = [number for number, row in enumerate(rows) if not math.isfinite(row["loss"])]
        if bad:
            first, before = rows[bad[0]], rows[max(bad[0] - 1, 0)]
            raise TraindoctorError(
                f"the loss became {first['loss']} at step {first['step']} (gradient norm before it "
                f"{before['grad_norm']:.3g}): start anew with a lower --lr, or see why with "
                f"traindoctor diagnose {self.run}; checkpoints before it are whole",
                slug="not-finite",
            )
