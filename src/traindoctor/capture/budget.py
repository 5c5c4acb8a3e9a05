"""The governor: what traindoctor may cost, and which measurements the next step can pay for.

An account in seconds. Every step earns `budget x step time`; every measurement pays what it really cost. What
is forced (the first use of everything, the first tapes) is lent and paid back from a part of later earnings, so
that in the long run the budget holds and measuring never stops. Cost and earnings are both wall time of the script's
thread: CPU time against wall time would lose the budget times the load of the machine.
"""

from __future__ import annotations

from collections import deque
from statistics import median

# A compile or an evaluation inside a step must not become credit: at most this many ordinary steps' worth.
LONG_STEP = 3.0
# A step shorter than SHORT_STEP seconds may cost no more than one of EARNS_AS seconds, whatever its share would be.
SHORT_STEP, EARNS_AS = 0.05, 0.01
# Steps after which their median says what an ordinary one is.
ORDINARY = 5
# Credit that was not used is kept for costly measurements, but not for ever.
CAP_STEPS = 40
# The first steps pay for the first use of everything: the budget of so many seconds is lent for them, once.
ADVANCE_SECONDS = 25.0
# All that is spent before it is earned: the budget of the first minute.
UP_FRONT_SECONDS = 60.0
# Part of the earnings that pays debts back, when listening is paid: 25 seconds' worth is given back after 50 to 100 more.
REPAID = 0.5
# After the first minute this part of what is earned pays back what was spent ahead; the rest is all that may be spent.
PAID_BACK = 0.25
# A measurement that has waited so many times its wish is saved for: what is less overdue waits with it.
PATIENT = 3.0
# The first call of a measurement costs about so many times what later ones cost.
FIRST_USE = 3.0
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
        self.price = 0.0
        """What a call usually costs."""

    def overdue(self, step: int) -> float:
        """1 when its wish is just met; a part that never ran comes first."""
        if self.last_step is None:
            return float("inf")
        return (step - self.last_step) / self.every

    def ran(self, step: int, seconds: float) -> None:
        """The first call pays for the kernels' first use: a guess at the price."""
        self.calls += 1
        self.last_step = step
        if self.calls > 1:
            self.costs.append(seconds)
            self.price = median(self.costs)
        else:
            self.price = seconds / FIRST_USE


class Governor:
    """`choose(step)` says which parts run in that step; `pay` and `end_step` keep the account."""

    def __init__(self, budget: float) -> None:
        self.budget = budget
        self.credit = 0.0
        self.advance = budget * ADVANCE_SECONDS
        """What may still be lent."""
        self.debt = 0.0
        self.reserved = 0.0
        """For listening to the first steps: no test may take it."""
        self.spent = self.owed = 0.0
        """By probes and listening, and by others: all told."""
        self.run_seconds = self.earned = 0.0
        """The script's own time, and what all of it may cost."""
        self.ahead = 0.0
        """What the first minute spent before it was earned, and is not paid back yet."""
        self.left = 0.0
        """Of what was earned after the first minute; under 0 where listening, measurements or tests took more."""
        self.parts: dict[str, Part] = {}
        self.step_seconds = 0.0
        """Seconds of an ordinary step, 0 before the first one."""
        self._steps: deque[float] = deque(maxlen=STEPS_REMEMBERED)
        self._chosen: tuple[int, set[str]] | None = None
        self._paid = self._measured = 0.0
        """In this step: all, and what of it went to parts."""

    def add(self, name: str, every: int) -> None:
        self.parts[name] = Part(max(1, every))
        self._chosen = None

    @property
    def cap(self) -> float:
        """The most that can be saved."""
        return CAP_STEPS * self.earnings(self.step_seconds)

    def earnings(self, seconds: float) -> float:
        """What a step that takes so long may cost."""
        return self.budget * (seconds if seconds >= SHORT_STEP else min(seconds, EARNS_AS))

    @property
    def rate(self) -> float:
        """What an ordinary step may cost, over its time."""
        return self.earnings(self.step_seconds) / self.step_seconds if self.step_seconds else 0.0

    @property
    def early(self) -> bool:
        """The first minute of the script's own time is not over."""
        return self.run_seconds < UP_FRONT_SECONDS

    @property
    def overdrawn(self) -> float:
        """Steps after which what was spent too much since the first minute is earned."""
        earned = (1 - PAID_BACK) * self.earnings(self.step_seconds)
        return -self.left / earned if self.left < 0 and earned else 0.0

    @property
    def up_front(self) -> float:
        """What may be spent now, of what a minute earns, or of what was earned since."""
        return max(self.budget * UP_FRONT_SECONDS, self.earned)

    @property
    def can_lend(self) -> bool:
        """What a minute earns may be spent at once, by probes and doctor together, and no more."""
        return self.spent + self.owed < self.up_front

    def choose(self, step: int) -> set[str]:
        """The most overdue first, while their usual price is covered. The first call of each is let in."""
        if self._chosen is not None and self._chosen[0] == step:
            return self._chosen[1]  # several ask for the same step
        chosen: set[str] = set()
        left = self.credit + self.advance
        if self.overdrawn:
            left = 0.0
        if left <= 0.0 and (not self.can_lend or all(p.calls for p in self.parts.values())):
            self._chosen = (step, chosen)
            return chosen
        for name, part in sorted(
            self.parts.items(), key=lambda item: item[1].overdue(step), reverse=True
        ):
            if part.overdue(step) < 1.0:
                continue
            if (part.calls == 0 and self.can_lend) or 0.0 < left >= part.price:
                chosen.add(name)
                left -= part.price
            elif part.overdue(step) >= PATIENT and part.price <= self.cap:
                break  # cheaper ones must not eat for ever what a dear one waits for
        self._chosen = (step, chosen)
        return chosen

    def ran(self, name: str, step: int, seconds: float) -> None:
        """A part ran in this step."""
        self._chosen = None
        self._measured += seconds
        self.parts[name].ran(step, seconds)

    def pay(self, seconds: float) -> None:
        """From what was earned; the rest is lent."""
        self.spent += seconds
        self._take(seconds)
        self._paid += seconds
        self._chosen = None
        lent = max(0.0, seconds - self.credit)
        self.credit -= seconds - lent
        self.advance = max(0.0, self.advance - lent)
        self.debt += lent

    def owe(self, seconds: float) -> None:
        """Spent by others (the doctor) on the same budget: paid back before more is measured than half of what is earned."""
        self.debt += seconds
        self.owed += seconds
        self._take(seconds)

    def _take(self, seconds: float) -> None:
        if not self.early:
            self.left -= seconds

    def end_step(self, seconds: float, steps: int = 1) -> None:
        """A step of the script (or so many of them) took so long, ours not counted."""
        seconds /= steps
        # The first ones may be no measure: without modules a step is seen only when its backward pass begins.
        known = self.step_seconds if len(self._steps) >= ORDINARY else max(self._steps, default=0)
        if known > 0:
            seconds = min(seconds, LONG_STEP * known)
        self._steps.append(seconds)
        self.step_seconds = median(self._steps)
        self._chosen = None
        earned = self.earnings(seconds) * steps
        self.earned += earned
        early = self.early
        self.run_seconds += seconds * steps
        if not early:
            back = min(self.ahead, PAID_BACK * earned)
            self.ahead -= back
            self.left = min(self.cap, self.left + earned - back)
        elif not self.early:
            self.ahead = max(0.0, self.spent + self.owed - self.earned)
        # Listening comes first: were debts paid from what it needs, nothing would ever be measured again.
        listening = max(0.0, self._paid - self._measured)
        self._paid = self._measured = 0.0
        repaid = min(self.debt, REPAID * max(0.0, earned - listening))
        self.debt -= repaid
        self.credit = min(self.cap, self.credit + earned - repaid)

    @property
    def share(self) -> float:
        """What was spent of the run's own time, by all."""
        return (self.spent + self.owed) / self.run_seconds if self.run_seconds else 0.0
