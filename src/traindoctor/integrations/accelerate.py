"""A tracker for Accelerate:

from traindoctor.integrations.accelerate import TraindoctorTracker
accelerator = Accelerator(log_with=TraindoctorTracker("my-run"))
accelerator.init_trackers("my-run")
...
accelerator.end_training()
"""

from pathlib import Path
from typing import Any

from accelerate.tracking import GeneralTracker, on_main_process

from traindoctor.diagnosis import Diagnosis
from traindoctor.integrations.attendance import Attendance


class TraindoctorTracker(GeneralTracker):  # type: ignore[misc]
    """Watches from `init_trackers` to `end_training`; what the script logs joins the record."""

    name = "traindoctor"
    requires_logging_directory = False

    def __init__(
        self,
        run_name: str = "accelerate",
        *,
        out: Path | str | None = None,
        budget: float = 0.02,
        quiet: bool = False,
    ) -> None:
        super().__init__()
        self.run_name = run_name
        self.attendance = Attendance(out=out, budget=budget, quiet=quiet)
        self.attendance.begin()

    @property
    def tracker(self) -> Attendance:
        return self.attendance

    @property
    def diagnosis(self) -> Diagnosis | None:
        return self.attendance.diagnosis

    @on_main_process
    def store_init_configuration(self, values: dict[str, Any]) -> None:
        watch = self.attendance.watch
        if watch is not None:
            watch.describe(config=values)

    @on_main_process
    def log(self, values: dict[str, Any], step: int | None = None, **more: Any) -> None:
        self.attendance.metrics(values)

    @on_main_process
    def finish(self) -> None:
        self.attendance.end()
