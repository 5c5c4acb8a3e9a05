"""What a comparison of two runs says first: did B get rid of what A has, and where does its loss end?

Nothing is called better whose data differ, and nothing fixed that no test of B has ruled out.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from traindoctor.compare.run_differences import states
from traindoctor.compare.run_losses import Data, Losses
from traindoctor.compare.run_rows import listed, said_pair
from traindoctor.diagnosis import Diagnosis
from traindoctor.record.wording import counted

# Two losses are told in so few digits that their difference shows.
LOSS_DIGITS = 3
RULED_OUT = ("holds", "passed", "does not apply")


@dataclass(frozen=True)
class Told:
    """What the headline is made of."""

    a: Diagnosis
    b: Diagnosis
    losses: Losses | None
    data: Data
    since: int | None
    """The first step at which the batches differ."""
    settings_differ: bool
    scripts_differ: bool

    @property
    def verdicts_differ(self) -> bool:
        return (self.a.verdict, proven(self.a)) != (self.b.verdict, proven(self.b))

    @property
    def different(self) -> bool:
        beyond_noise = self.losses is not None and self.losses.differ
        return self.verdicts_differ or self.settings_differ or beyond_noise

    def headline(self) -> str:
        alike = not (self.verdicts_differ or self.settings_differ)
        if alike and self.losses is not None and self.losses.equal:
            equal = f"losses equal to the last bit in {counted(self.losses.common, 'step')}"
            if self.scripts_differ:
                return f"the scripts differ, the runs do not: {equal}"
            return f"A and B are the same run: {equal}"
        return f"{self._of_the_verdicts()}; {self._of_the_losses()}"

    def _of_the_verdicts(self) -> str:
        before, after = proven(self.a), proven(self.b)
        gone = [cause for cause in before if cause not in after]
        new = [cause for cause in after if cause not in before]
        still = [cause for cause in after if cause in before]
        if not after:
            return self._better(gone) if gone else self._nothing_proven()
        if not before:
            return self._worse(new)
        rest = []
        if still:
            same = f"{_are(still)} still {_how(self.b, still)}"
            alone = not gone and not new and not self._loss_is_lower()
            rest.append(f"B is no better: {same}" if alone else same)
        if new:
            rest.append(f"{_named(self.b, new)} {'is' if len(new) == 1 else 'are'} new in B")
        fixes = ", ".join(_fixes(gone, states(self.b)))
        return ", but ".join(filter(None, (fixes, " and ".join(rest))))

    def _nothing_proven(self) -> str:
        if self.a.verdict != self.b.verdict:
            return f"no cause is proven in either run: A is {_is(self.a)}, B {_is(self.b)}"
        if self.a.verdict == "healthy":
            return "A and B are both healthy"
        return f"no cause is proven in either run, both are {_is(self.a)}"

    def _worse(self, new: Sequence[str]) -> str:
        seen = states(self.a)
        if all(seen.get(cause) == "not tested" for cause in new):
            return f"B has {_named(self.b, new)}, which could not be tested in A"
        return f"B is worse: {_named(self.b, new)}, and A is {_is(self.a)}"

    def _better(self, gone: Sequence[str]) -> str:
        seen = states(self.b)
        said = ", ".join(_fixes(gone, seen))
        if not all(seen.get(cause) in RULED_OUT for cause in gone):
            return f"{said}, and B is {_is(self.b)}"
        if self.b.verdict != "healthy":
            return f"{said}, but is not shown to be healthy: it is {_is(self.b)}"
        return f"{said}: {self.a.verdict} -> healthy"

    def _loss_is_lower(self) -> bool:
        one = self.losses
        return one is not None and self.data != "differ" and one.certain and one.b < one.a

    def _of_the_losses(self) -> str:
        one = self.losses
        if one is None:
            return "their losses cannot be compared: no step has the same loss in both"
        if one.equal:
            return f"their losses are equal to the last bit in {counted(one.common, 'step')}"
        if self.data == "differ":
            where = f" from step {self.since} on" if self.since else ""
            return f"the runs cannot be compared by their loss: the data differ{where}"
        if (one.ended_a, one.ended_b) != (None, None):
            return _not_finite(one)
        if math.isnan(one.noise):
            return f"{counted(one.common, 'common step')} are too few to compare their losses"
        if not one.certain:
            return "their losses end within their noise of each other"
        a, b = said_pair(one.a, one.b, LOSS_DIGITS)
        return f"the loss of B is {b} instead of {a} (mean of steps {one.first} to {one.last})"


def proven(one: Diagnosis) -> dict[str, str]:
    """Status of each root that is more than a guess."""
    return {
        cause.finding.cause: cause.finding.status
        for cause in one.roots
        if cause.finding.status != "possible"
    }


def _fixes(gone: Sequence[str], after: dict[str, str]) -> list[str]:
    """Only what a test of B has ruled out is fixed."""
    fixed = [cause for cause in gone if after.get(cause) in RULED_OUT]
    guessed = [cause for cause in gone if "(" in after.get(cause, "")]
    untested = [cause for cause in gone if cause not in (*fixed, *guessed)]
    parts = [f"B fixes {listed(fixed)}"] if fixed else []
    if guessed:
        parts.append(f"{_are(guessed)} no longer proven in B, but not ruled out")
    if untested:
        parts.append(f"{listed(untested)} could not be tested in B")
    return parts


def _are(causes: Sequence[str]) -> str:
    return f"{listed(causes)} {'is' if len(causes) == 1 else 'are'}"


def _named(one: Diagnosis, causes: Sequence[str]) -> str:
    found = proven(one)
    return listed([f"{cause} ({found[cause]})" for cause in causes])


def _how(one: Diagnosis, causes: Sequence[str]) -> str:
    found = proven(one)
    return "confirmed" if all(found[cause] == "confirmed" for cause in causes) else "found"


def _is(one: Diagnosis) -> str:
    return "still running" if one.verdict == "running" else one.verdict


def _not_finite(one: Losses) -> str:
    if one.ended_b is None:
        return f"the loss of A is not finite from step {one.ended_a} on, that of B stays finite"
    if one.ended_a is None:
        return f"the loss of B is not finite from step {one.ended_b} on, that of A stays finite"
    return f"no loss stays finite: A's ends at step {one.ended_a}, B's at step {one.ended_b}"
