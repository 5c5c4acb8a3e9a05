"""The verdict of each run: the doctor's own where the record has it, else made here, in the background."""

import threading
import time
from dataclasses import dataclass, field
from typing import Any

from traindoctor.dashboard.store import RunStore
from traindoctor.errors import TraindoctorError
from traindoctor.record.progress import num_steps

# A verdict that is made here is made again at most so often, however fast the run is.
AGAIN_SECONDS = 5.0
# And for so many times as long as it took: many ranks take seconds to read.
STANDS = 20


@dataclass
class _Desk:
    verdict: dict[str, Any] | None = None
    steps: int = -1
    exams: int = -1
    made: float = 0.0
    again: float = 0.0
    busy: bool = False


@dataclass
class Verdicts:
    """`of(name)` never waits: what is not known yet is None, and comes with a later event."""

    store: RunStore
    _desks: dict[str, _Desk] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def of(self, name: str, record: Any) -> dict[str, Any] | None:
        written = record.fact("verdict")
        if isinstance(written, dict) and "verdict" in written:
            return written
        with self._lock:
            desk = self._desks.setdefault(name, _Desk())
            steps, exams = num_steps(record), len(record.exam_results)
            stale = (steps, exams) != (desk.steps, desk.exams)
            if stale and not desk.busy and time.monotonic() > desk.again:
                desk.busy = True
                threading.Thread(target=self._make, args=(name, desk), daemon=True).start()
            return desk.verdict

    def forget(self, name: str) -> None:
        """Another run may get this name."""
        with self._lock:
            self._desks.pop(name, None)

    def version(self, name: str) -> float:
        """Changes when a verdict has been made."""
        return self._desks[name].made if name in self._desks else 0.0

    def _make(self, name: str, desk: _Desk) -> None:
        from traindoctor.diagnosis import diagnose
        from traindoctor.report.json import as_dict

        began = time.monotonic()
        try:
            with self.store.reading(name, use="verdict") as run:
                desk.steps, desk.exams = num_steps(run.record), len(run.record.exam_results)
                desk.verdict = as_dict(diagnose(run.record))
        except TraindoctorError as error:
            desk.verdict = {"verdict": "inconclusive", "causes": [], "error": str(error)}
        finally:
            desk.made = time.monotonic()
            desk.again = desk.made + max(AGAIN_SECONDS, STANDS * (desk.made - began))
            desk.busy = False
