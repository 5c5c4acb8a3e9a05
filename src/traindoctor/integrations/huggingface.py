"""A callback for transformers' Trainer:

    from traindoctor.integrations.huggingface import TraindoctorCallback
    trainer = Trainer(..., callbacks=[TraindoctorCallback()])

The Trainer shows callbacks neither the batch nor the gradients before clipping: those come from the same
taps as for any other script.
"""

from pathlib import Path
from typing import Any

from transformers import TrainerCallback

from traindoctor.diagnosis import Diagnosis
from traindoctor.integrations.attendance import Attendance


class TraindoctorCallback(TrainerCallback):
    """Watches the training and prints the verdict at its end; `callback.diagnosis` has it."""

    def __init__(
        self, *, out: Path | str | None = None, budget: float = 0.02, quiet: bool = False
    ) -> None:
        self.attendance = Attendance(out=out, budget=budget, quiet=quiet)

    @property
    def diagnosis(self) -> Diagnosis | None:
        return self.attendance.diagnosis

    def on_train_begin(
        self, args: Any, state: Any, control: Any, model: Any = None, **more: Any
    ) -> None:
        # The optimizer the Trainer hands over is Accelerate's wrapper: the taps find the real one.
        self.attendance.begin(model)

    def on_step_end(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        self.attendance.expect(state.max_steps)

    def on_evaluate(
        self, args: Any, state: Any, control: Any, metrics: Any = None, **more: Any
    ) -> None:
        self.attendance.metrics({k: v for k, v in (metrics or {}).items() if k == "eval_loss"})

    def on_train_end(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        self.attendance.end()
