"""How closely each step is followed: everything, the pulse only, or nothing.

In an attentive step everything is heard; in a heard one only the pulse: losses, norms, rates, times. The first steps are
all attentive: that is where most faults show. Then the price of both is known, and so many steps lie between two
attentive ones that listening keeps to its part of the budget. Where steps are so short that even the pulse would
exceed it, steps between two heard ones pass in silence. All are chosen by number, so the ranks of a run share them.
"""

from __future__ import annotations

from collections import deque
from statistics import median

# Everything is heard so long.
FIRST_STEPS = 64
# However slow the machine is: fewer measured steps make no verdict (diagnosis/verdict.py: ENOUGH_STEPS).
FEWEST_FIRST = 20
# And so long where a new optimizer begins another stage of the run.
STAGE_STEPS = 16
# Part of the budget that listening may use; the rest is for measurements.
SHARE = 0.5
# Most steps between two heard ones in the first minute and later, and between two attentive ones.
LONGEST_SILENCE, LONGEST_LATER, LONGEST = 16, 64, 256
# Costs are medians over so many steps of each kind: an exam or a busy machine inside one must not count.
REMEMBERED = 15
# What is heard as the pulse. half_moves follows weights from step to step and ends by itself; loaded_weights has
# nothing to do before something is loaded.
PULSE = frozenset(
    {"loss", "timing", "rates", "clipping", "gradient_norm", "scaler", "half_moves"}
    | {"loaded_weights"}
)
# Evaluations are rare and each one counts: a pass without gradient wakes these for its step.
ROUSED = frozenset({"targets", "modes", "eval_dropout", "running_statistics"})


class Attention:
    """`attentive(step)`: all probes are told of everything; `heard(step)`: at least the pulse is."""

    def __init__(self) -> None:
        self.stride = self.pulse = 1
        self.first = FIRST_STEPS
        """Steps that are all attentive."""
        self._stage = range(0)
        """Those of the latest stage that are."""
        self._attentive: deque[float] = deque(maxlen=REMEMBERED)
        self._ordinary: deque[float] = deque(maxlen=REMEMBERED)

    def attentive(self, step: int) -> bool:
        return step < self.first or step in self._stage or step % self.stride == 0

    def heard(self, step: int) -> bool:
        return step < self.first or step in self._stage or step % self.pulse == 0

    def end_step(self, step: int, seconds: float, earned: float, *, early: bool = True) -> None:
        """What listening to this step cost, measurements not counted, beside what a step may cost in all."""
        if not self.attentive(step):
            self._ordinary.append(seconds)
            return
        self._attentive.append(seconds)
        if step + 1 >= self.first:
            self._decide(SHARE * earned, LONGEST_SILENCE if early else LONGEST_LATER)

    def wait(self, step: int, steps: float) -> None:
        """More was spent than earned, by whomever: so many steps will bring it in, and until then silence is longer."""
        while step + 1 >= self.first and self.pulse < min(steps, LONGEST):
            self.pulse *= 2
        self.stride = max(self.stride, self.pulse)

    def begin_stage(self, step: int) -> None:
        """A new optimizer takes its first step: what it trains is looked at anew. Scripts that make one after the other are
        followed closely at distances that double."""
        if step >= max(self.first, 2 * self._stage.start):
            self._stage = range(step, step + STAGE_STEPS)

    def reserve(self, step: int) -> float:
        """What listening to the rest of the first steps will cost, judged by the cheapest so far: no test may take it."""
        left = self.first - step
        return left * min(self._attentive) if left > 0 and self._attentive else 0.0

    def end_beginning(self, step: int) -> None:
        """All that may be spent up front is spent: from here on steps are followed at their distances."""
        self.first = min(self.first, max(FEWEST_FIRST, step + 1))

    def _decide(self, allowed: float, silence: int) -> None:
        """Half of what is allowed for the pulse, the rest for attention."""
        ordinary = median(self._ordinary) if self._ordinary else 0.0
        extra = max(0.0, median(self._attentive) - ordinary)
        self.pulse = 1
        while self.pulse < silence and ordinary / self.pulse > allowed / 2:
            self.pulse *= 2
        self.stride = self.pulse
        while self.stride < LONGEST and ordinary / self.pulse + extra / self.stride > allowed:
            self.stride *= 2
