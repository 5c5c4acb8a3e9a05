from __future__ import annotations

import numpy as np

from traindoctor.checks.base import Outcome, check, evidence
from traindoctor.record import Record, Series

# Share of a step that the device stands idle after the script read a value from it. A read costs nothing where
# the device has other work queued or the step is long; a fifth of the step is worth a line of code.
IDLE_SHARE = 0.2
# A step in which our own work takes more than this share of a usual one tells about us, and so may the step after
# it: the device waits for us too. Measured on a busy CPU, a small transformer of 23 and 65 ms a step: 0.16 to 0.37
# in the first 24 steps, which measure everything once, 0.02 to 0.06 after step 64.
DISTURBED = 0.1
# A median of fewer steps is the chance of one of them.
FEWEST = 5


@check(
    code="SPD003",
    slug="sync-every-step",
    title="The device is waited for in every step",
)
def sync_every_step(record: Record) -> Outcome | None:
    """
    ## What it does
    Counts the values that the script reads from the device in each step (`item()`, `float()`, printing) and
    measures, by events on the device, how long it then stands idle until the next work reaches it.
    ## Why it matters
    A GPU is fed ahead of time. A read waits until it has nothing left to do, and the next step starts cold.
    ## How to fix
    Keep the loss as a tensor (`running += loss.detach()`) and read it every 50 or 100 steps.
    ## When it stays silent
    On a CPU there is nothing to wait for. Reading is common in sound scripts: only idle time counts, in steps in which
    traindoctor itself did little, or what is left of it when all of our own time is taken off.
    """
    environment = record.fact("env")
    if environment is None:
        return sync_every_step.not_judged("the device is not known")
    if environment.get("device") == "cpu":
        return sync_every_step.not_applicable("on a CPU there is no device to wait for")
    reads, idle = record.get("sync.reads"), record.get("sync.idle")
    if reads is None or len(reads) < 8:
        return sync_every_step.not_judged("too few steps on the device were seen")
    if float(np.median(reads.values)) < 1:
        return sync_every_step.clear("the script does not read from the device at every step")
    step = record.get("time.step")
    if idle is None or len(idle) < FEWEST or step is None or not len(step):
        return sync_every_step.not_judged("the idle time of the device was not measured")
    own = record.get("self.seconds")
    loud = disturbed(own, step)
    quiet_idle, quiet_step = (x.take(~np.isin(x.steps, loud)) for x in (idle, step))
    if len(quiet_idle) >= FEWEST and len(quiet_step):
        share = quiet_idle.median() / max(1e-9, quiet_step.median())
    else:
        share = least_share(idle, step, own)
        if share < IDLE_SHARE:
            return sync_every_step.not_judged("our own measurements fill most of the steps so far")
    if share < IDLE_SHARE:
        return sync_every_step.clear(
            f"reads leave the device idle for {100 * share:.0f} % of a step"
        )
    return sync_every_step.finding(
        evidence("share of the step the device is idle after a read", share, 0.0, noise=0.05),
        evidence("values read per step", reads),
        grade="statistic",
        summary=f"the script reads {reads.median():.0f} value(s) from the device in each step, and the device "
        f"then stands idle for {100 * share:.0f} % of the step",
    )


def disturbed(own: Series | None, step: Series) -> np.ndarray:
    """The steps whose times are ours as well, and the one after each: what we queue last delays its first work."""
    if own is None:
        return np.array([], dtype=np.int64)
    # Half of the steps of a short run may be disturbed and long: the shorter ones are the usual ones.
    usual = float(np.percentile(step.values, 25))
    loud = own.steps[own.values > DISTURBED * usual]
    return np.union1d(loud, loud + 1)


def least_share(idle: Series, step: Series, own: Series | None) -> float:
    """The share that cannot be ours, as if all we did in a step and in the next had been done while it was idle: the median
    of the quarter of the steps in which we did least."""
    ours = {} if own is None else dict(zip(own.steps.tolist(), own.values.tolist()))
    lengths = dict(zip(step.steps.tolist(), step.values.tolist()))
    by_own = sorted(
        (ours.get(n, 0.0) + ours.get(n + 1, 0.0), seconds, lengths[n])
        for n, seconds in zip(idle.steps.tolist(), idle.values.tolist())
        if n in lengths
    )
    quiet = by_own[: max(FEWEST, len(by_own) // 4)]
    shares = [(seconds - spent) / length for spent, seconds, length in quiet]
    return float(np.median(shares)) if len(shares) >= FEWEST else 0.0
