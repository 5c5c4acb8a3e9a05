"""A callback for Lightning's Trainer:

from traindoctor.integrations.lightning import TraindoctorCallback
trainer = L.Trainer(..., callbacks=[TraindoctorCallback()])
"""

from pathlib import Path
from typing import Any

from traindoctor.diagnosis import Diagnosis
from traindoctor.errors import TraindoctorError
from traindoctor.integrations.attendance import Attendance

try:
    from lightning.pytorch.callbacks import Callback
except ImportError:
    try:
        from pytorch_lightning.callbacks import Callback  # type: ignore[assignment]
    except ImportError:
        raise TraindoctorError("this callback needs Lightning: pip install lightning") from None


class TraindoctorCallback(Callback):
    """Watches `fit` and prints the verdict at its end; `callback.diagnosis` has it."""

    def __init__(
        self, *, out: Path | str | None = None, budget: float = 0.02, quiet: bool = False
    ) -> None:
        self.attendance = Attendance(out=out, budget=budget, quiet=quiet)

    @property
    def diagnosis(self) -> Diagnosis | None:
        return self.attendance.diagnosis

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        self.attendance.begin(pl_module)

    def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
        # Asked once, when the loaders are made: the question would make them. Infinite without an end.
        if not self.attendance.expected:
            self.attendance.expect(trainer.estimated_stepping_batches)

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        if not trainer.sanity_checking:
            self.attendance.metrics(
                {k: v for k, v in trainer.callback_metrics.items() if k == "val_loss"}
            )

    def on_fit_end(self, trainer: Any, pl_module: Any) -> None:
        self.attendance.end()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        self.attendance.end()
