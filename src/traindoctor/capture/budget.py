"""The governor: what traindoctor may cost, and which measurements the next step can pay for.

A token bucket in seconds. Every step earns `budget x step time`; every measurement pays what it really
cost, debt allowed. Own cost is thread CPU time: on a busy machine wall time counts other programs too.
"""

from __future__ import annotations

from collections import deque
from statistics import median

# A compile or an evaluation inside a step must not become credit: at most this many ordinary steps' worth.
LONG_STEP = 3.0
# Credit that was not used is kept for costly measurements, but not for ever.
CAP_STEPS = 40
# The first steps pay for the first use of everything: the budget of so many seconds is given in advance, once.
ADVANCE_SECONDS = 50.0
# Medians are taken over these many steps and calls: long enough for noise, short enough to follow a change.
STEPS_REMEMBERED = 31
CALLS_REMEMBERED = 15


class Part:
    """One measurement the governor may put off."""

    def __init__(self, every: int) -> None:
        self.every = every
        self.calls = 0
        self.last_step: int | None = None
        self.costs: deque[float] = deque(maxlen=CALLS_REMEMBERED)

    def overdue(self, step: int) -> float:
        """1 when its wish is just met; a part that never ran comes first."""
        if self.last_step is None:
            return float("inf")
        return (step - self.last_step) / self.every

    @property
    def price(self) -> float:
        return median(self.costs) if self.costs else 0.0


class Governor:
    """`choose(step)` says which parts run in that step; `pay` and `end_step` keep the account."""

    def __init__(self, budget: float) -> None:
        self.budget = budget
        self.credit = 0.0
        self.advance = budget * ADVANCE_SECONDS
        self.spent = 0.0
        self.earned_time = 0.0
        self.parts: dict[str, Part] = {}
        self._steps: deque[float] = deque(maxlen=STEPS_REMEMBERED)

    def add(self, name: str, every: int) -> None:
        self.parts[name] = Part(max(1, every))

    @property
    def step_seconds(self) -> float:
        """Seconds of an ordinary step, 0 before the first one."""
        return median(self._steps) if self._steps else 0.0

    def choose(self, step: int) -> set[str]:
        """The most overdue first, while their usual price is covered. The first call of each is let in."""
        chosen: set[str] = set()
        left = self.credit + self.advance
        for name, part in sorted(
            self.parts.items(), key=lambda item: item[1].overdue(step), reverse=True
        ):
            if part.overdue(step) < 1.0:
                continue
            if part.calls == 0 or part.price <= left:
                chosen.add(name)
                left -= part.price
        return chosen

    def ran(self, name: str, step: int, seconds: float) -> None:
        """A part ran in this step. Its first call pays for the kernels' first use: no price to learn from."""
        part = self.parts[name]
        part.calls += 1
        part.last_step = step
        if part.calls > 1:
            part.costs.append(seconds)

    def pay(self, seconds: float) -> None:
        """From the advance while it lasts. Debt is bounded: what was forced once must not silence a whole run."""
        self.spent += seconds
        given = min(self.advance, seconds)
        self.advance -= given
        self.credit = max(self.credit - (seconds - given), -self._bound)

    @property
    def _bound(self) -> float:
        return CAP_STEPS * self.budget * self.step_seconds if self._steps else float("inf")

    def end_step(self, seconds: float) -> None:
        """A step of the script took so long, ours not counted."""
        if self._steps:
            seconds = min(seconds, LONG_STEP * self.step_seconds)
        self._steps.append(seconds)
        self.earned_time += seconds
        self.credit = min(self._bound, self.credit + self.budget * seconds)

    @property
    def share(self) -> float:
        """What was spent of the run's own time."""
        return self.spent / self.earned_time if self.earned_time else 0.0
