"""Whether a change of a script cured it: what was broken without the change and holds with it, and what the loss gained."""

import math
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from traindoctor.checks import BY_SLUG
from traindoctor.compare.run_differences import states
from traindoctor.compare.run_headline import LOSS_DIGITS, RULED_OUT, proven
from traindoctor.compare.run_losses import losses, same_data
from traindoctor.compare.run_rows import plain, said_pair
from traindoctor.diagnosis import Diagnosis
from traindoctor.record import Record

# Without these faults the model is asked for something else, so its loss measures something else.
ANOTHER_TASK = {
    "causal-mask-leak": "before, the answer could be seen, which makes a low loss easy",
    "targets-misaligned": "before, other targets were asked for",
}


@dataclass(frozen=True)
class Gain:
    """The loss at the end of both runs, over the same steps."""

    measure: str
    before: float
    after: float
    gained: float | None
    """How much lower it ends; None where the two numbers do not measure the same."""
    first: int
    last: int
    remark: str | None = None
    """Why they do not, or why chance may have a part in it."""


@dataclass(frozen=True)
class Verification:
    """`holds` is None where no test could decide."""

    patch: str
    against: str
    """The folder of the run without the change."""
    cause: str | None
    """What the change was to cure; None where nothing was proven to be wrong."""
    law: str | None
    before: str
    after: str
    holds: bool | None
    new: tuple[str, ...]
    """Causes that only the changed run has."""
    loss: Gain | None
    said: str
    """In a sentence."""

    def as_dict(self) -> dict[str, Any]:
        """Plain data; NaN and infinity become strings, because JSON has none."""
        loss = None if self.loss is None else {k: plain(v) for k, v in asdict(self.loss).items()}
        return {**asdict(self), "new": list(self.new), "loss": loss}


def verified(
    before: tuple[Record, Diagnosis],
    after: tuple[Record, Diagnosis],
    *,
    patch: str,
    text: str,
    against: Path,
) -> Verification:
    """`text` is that of the patch: where it is the fix of one cause, that is the cause it is to cure."""
    first, second = states(before[1]), states(after[1])
    cause = _meant(before[1], second, text)
    was, now = (
        (first.get(cause, "not tested"), second.get(cause, "not tested")) if cause else ("", "")
    )
    new = tuple(one for one in proven(after[1]) if one not in proven(before[1]))
    made = Verification(
        patch=patch,
        against=str(against),
        cause=cause,
        law=BY_SLUG[cause].law if cause in BY_SLUG else None,
        before=was,
        after=now,
        holds=None if cause is None or now == "not tested" else now in RULED_OUT,
        new=new,
        loss=_gain(before[0], after[0], cause),
        said="",
    )
    open_before = before[1].reason if before[1].verdict == "inconclusive" else None
    return replace(made, said=_sentence(made, open_before))


def _meant(before: Diagnosis, after: dict[str, str], text: str) -> str | None:
    """The cause whose fix this is; else the first that is gone; else the first."""
    found = list(proven(before))
    whose = [
        c.finding.cause
        for c in before.causes
        if c.fix is not None and c.fix.strip() == text.strip()
    ]
    gone = [cause for cause in found if after.get(cause) in RULED_OUT]
    return next(iter([*whose, *gone, *found]), None)


def _gain(before: Record, after: Record, cause: str | None) -> Gain | None:
    one = losses(before, after)
    if one is None:
        return None
    data, since = same_data(before, after)
    remark = ANOTHER_TASK.get(cause or "")
    if remark is None and one.a < 0 < one.b:
        remark = "before, it was no cross-entropy: that is never below 0"
    comparable = remark is None
    if remark is None and data == "differ":
        remark = f"the batches differ from step {since} on, so a part of the difference is chance"
    gained = one.a - one.b if comparable else None
    if gained is not None and math.isnan(gained):
        gained = None
    return Gain(one.measure, one.a, one.b, gained, one.first, one.last, remark)


def _sentence(one: Verification, open_before: str | None = None) -> str:
    """`open_before`: why the run without the change has no verdict."""
    if one.cause is None and open_before is not None:
        text = f"whether it cures anything is not known: the run without the change has no verdict ({open_before})"
    elif one.cause is None:
        text = "nothing was proven to be wrong without the change, so there is nothing that it could cure"
    else:
        what = f"{one.cause}: {one.law}" if one.law else one.cause
        text = {
            True: f"the law now holds ({what})" if one.law else f"{what} is gone",
            False: f"it is still {one.after} ({what})",
            None: f"whether it is cured could not be tested ({what})",
        }[one.holds]
    if one.new:
        text += f"; new with the change: {', '.join(one.new)}"
    return f"{text}; {_of_the_loss(one.loss)}"


def _of_the_loss(one: Gain | None) -> str:
    if one is None:
        return "the two runs have no loss in common"
    a, b = said_pair(one.before, one.after, LOSS_DIGITS)
    text = f"the {one.measure} ends at {b} instead of {a} (mean of steps {one.first} to {one.last})"
    if one.gained is None and one.remark:
        return f"{text}, two numbers that cannot be compared: {one.remark}"
    return f"{text}; {one.remark}" if one.remark else text
