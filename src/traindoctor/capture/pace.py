"""The doctor's pace: after which steps it looks, what it may spend, and when a script has run long enough."""

from __future__ import annotations

import math
import sys
import time

from traindoctor.capture.budget import UP_FRONT_SECONDS, Governor

# Part of what is earned later: probes and doctor live on one budget. What the doctor spends is paid back by the probes
# from half of what listening leaves (1.15 of 2 % at 0.1 s a step): a larger part would never be paid back.
LATER_SHARE = 0.25
# Completed steps at which the record is looked at; then each 1.6 times the last.
LOOKS = (1, 2, 3, 5, 8, 13, 20, 30, 50, 80)
LOOK_GROWTH = 1.6
# Between looks an exam that was not affordable is tried again every so many steps.
EXAM_EVERY = 5
# The first minute lasts at least so many steps: where they are slow an early proof would come too late.
FIRST_STEPS = 20
# A script that is stopped by the clock has made so many steps: the tapes of the first and of a later one.
FEWEST_STEPS = 4


class Pace:
    """The first minute's budget is spent up front, by the doctor and the probes together: an early proof is worth it.

    What is left of it then lapses: later only a part of what is earned is spent. `spent` are the doctor's own seconds while
    the script runs.
    """

    def __init__(
        self,
        governor: Governor,
        *,
        stop_after: int | None = None,
        stop_seconds: float = math.inf,
        exam_seconds: float | None = None,
    ) -> None:
        self.governor = governor
        self.stop_after = stop_after
        self.stop_seconds = stop_seconds
        """The script's own seconds after its first step at which it is stopped, though steps are left."""
        self.exam_seconds = exam_seconds
        """Own seconds while the script runs, instead of the budget's share."""
        self.spent = 0.0
        self._first_minute: tuple[float, float] | None = None
        """When it ended, in seconds of the run, and what was spent by then."""
        self._began = time.perf_counter()
        self._completed = 0
        self._first_step: float | None = None
        self._next_look = LOOKS[0]
        self._next_exam = sys.maxsize

    def enough(self, completed: int) -> bool:
        """Whether the script is to be stopped: by steps, or by the clock."""
        if self.stop_after is None:
            return False
        now = time.perf_counter() - self.spent
        if self._first_step is None:
            self._first_step = now
        late = completed >= FEWEST_STEPS and now - self._first_step > self.stop_seconds
        return late or completed >= self.stop_after

    @property
    def allowance(self) -> float:
        """Seconds that may still be spent now."""
        if self.exam_seconds is not None:
            return self.exam_seconds - self.spent
        ran = time.perf_counter() - self._began - self.spent
        lent = self.governor.budget * UP_FRONT_SECONDS
        if self._first_minute is None:
            if ran < UP_FRONT_SECONDS or self._completed < FIRST_STEPS:
                return lent - self.spent - self.governor.spent - self.governor.reserved
            self._first_minute = ran, self.spent
        ended, before = self._first_minute
        return LATER_SHARE * self.governor.rate * (ran - ended) - (self.spent - before)

    def anything_due(self, completed: int) -> bool:
        self._completed = completed
        return completed >= min(self._next_look, self._next_exam)

    def look_due(self, completed: int) -> bool:
        """Whether the record is to be looked at; if so, the next look is set."""
        if completed < self._next_look:
            return False
        self._next_look = next_look(completed)
        return True

    def wait(self, completed: int, *, wanted: bool) -> None:
        """What is wanted and not affordable now is not asked about at every step."""
        self._next_exam = completed + EXAM_EVERY if wanted else sys.maxsize


def next_look(completed: int) -> int:
    """The completed steps at which to look next."""
    for look in LOOKS:
        if look > completed:
            return look
    return int(completed * LOOK_GROWTH)
