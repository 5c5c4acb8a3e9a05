"""Rest: where steps are so short that listening alone would exceed the budget, the dear listeners pause.

For the first steps everything listens: that is where most faults show. Then what each probe costs without
measuring anything is known, and those that cost most listen at every 2nd, 4th, 8th or 16th step only, chosen by
step number: all ranks of a run share at least the steps that 16 divides.
"""

from __future__ import annotations

from collections import Counter

# Everything listens so long.
FIRST_STEPS = 64
# Steps over which the costs are learned; again after so many, since a run changes.
WINDOW, AGAIN = 16, 512
# Part of the budget that listening may use; the rest is for measurements.
SHARE = 0.5
LONGEST = 16
# A curve with gaps, or a clock that misses a step, is worse than its price; the device's idle time is the script's
# own only in the steps in which the others rest; half_moves ends by itself.
NEVER = frozenset({"loss", "timing", "passes", "rates", "graphs", "sync", "half_moves"})
# Evaluations are rare and each one counts: a pass without gradient wakes these for its step.
ROUSED = frozenset({"targets", "modes"})


class Rest:
    """`attentive(step)`: all listen. Otherwise those in `resting` do not."""

    def __init__(self, budget: float) -> None:
        self.budget = budget
        self.stride = 1
        self.resting: frozenset[str] = frozenset()
        self._costs: Counter[str] = Counter()
        self._seen = 0

    def attentive(self, step: int) -> bool:
        return self.stride == 1 or step % self.stride == 0

    @property
    def measuring(self) -> bool:
        """Whether the cost of probes that are always on is being learned."""
        return self._seen < WINDOW

    def always(self, name: str, seconds: float) -> None:
        """What a probe cost in a step in which it measured nothing costly."""
        if self.measuring:
            self._costs[name] += seconds

    def end_step(self, step: int, step_seconds: float) -> None:
        if step < FIRST_STEPS - WINDOW:
            self._costs.clear()
            return
        if not self.attentive(step):
            return
        self._seen += 1
        if self._seen == WINDOW:
            self._decide(step_seconds)
        elif self._seen >= AGAIN:
            self._costs.clear()
            self._seen = 0

    def _decide(self, step_seconds: float) -> None:
        """The dearest rest, as long as needed for the others to fit."""
        allowed = SHARE * self.budget * step_seconds
        costs = {name: total / WINDOW for name, total in self._costs.items()}
        listening = sum(costs.values())
        resting: set[str] = set()
        for name in sorted(costs.keys() - NEVER, key=lambda name: costs[name], reverse=True):
            if listening <= allowed / 2 or (not resting and listening <= allowed):
                break
            resting.add(name)
            listening -= costs[name]
        self.resting = frozenset(resting)
        self.stride = 1
        dear = sum(costs[name] for name in resting)
        while resting and self.stride < LONGEST and listening + dear / self.stride > allowed:
            self.stride *= 2
