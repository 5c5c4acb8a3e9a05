"""Which steps everything listens to. In the others only the pulse is heard: losses, norms, rates, times.

The first steps are all attentive: that is where most faults show. Then what an attentive step costs above an ordinary
one is known, and so many ordinary ones lie between two of them that listening keeps to its part of the budget. Steps
are chosen by number, so all ranks of a run share at least those that LONGEST divides.
"""

from __future__ import annotations

from collections import deque
from statistics import median

# Everything is heard so long.
FIRST_STEPS = 64
# Part of the budget that listening may use; the rest is for measurements.
SHARE = 0.5
LONGEST = 256
# Costs are medians over so many steps of each kind: an exam or a busy machine inside one must not count.
REMEMBERED = 15
# What is heard in every step. A curve with gaps, or a clock that misses a step, is worse than its price; half_moves
# follows weights from step to step and ends by itself.
PULSE = frozenset({"loss", "timing", "rates", "clipping", "gradient_norm", "scaler", "half_moves"})
# Evaluations are rare and each one counts: a pass without gradient wakes these for its step.
ROUSED = frozenset({"targets", "modes", "eval_dropout"})


class Attention:
    """`attentive(step)`: all probes are told of everything."""

    def __init__(self, budget: float) -> None:
        self.budget = budget
        self.stride = 1
        self._costs: dict[bool, deque[float]] = {
            kind: deque(maxlen=REMEMBERED) for kind in (True, False)
        }

    def attentive(self, step: int) -> bool:
        return step < FIRST_STEPS or step % self.stride == 0

    def end_step(
        self, step: int, seconds: float, step_seconds: float, *, attentive: bool | None = None
    ) -> None:
        """What listening to this step cost, measurements not counted, beside the step's own time."""
        kind = self.attentive(step) if attentive is None else attentive
        self._costs[kind].append(seconds)
        if step + 1 >= FIRST_STEPS and kind:
            self._decide(step_seconds)

    def _decide(self, step_seconds: float) -> None:
        allowed = SHARE * self.budget * step_seconds
        ordinary = median(self._costs[False]) if self._costs[False] else 0.0
        extra = max(0.0, median(self._costs[True]) - ordinary)
        self.stride = 1
        while self.stride < LONGEST and ordinary + extra / self.stride > allowed:
            self.stride *= 2
