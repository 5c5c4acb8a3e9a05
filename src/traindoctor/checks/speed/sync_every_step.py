import numpy as np

from traindoctor.checks.base import Outcome, check, evidence
from traindoctor.record import Record

# Share of a step that the device stands idle after the script read a value from it. A read costs nothing where
# the device has other work queued or the step is long; a fifth of the step is worth a line of code.
IDLE_SHARE = 0.2
# A quartile of fewer steps is the chance of one of them.
FEWEST = 5
# Fewer steps with a reading tell nothing.
LEAST_STEPS = 8


@check(
    code="SPD003",
    slug="sync-every-step",
    title="Every step waits for the device",
    undecided="the steps were not repeated without the reads",
    costs_only_time=True,
)
def sync_every_step(record: Record) -> Outcome:
    """
    ## What it does
    Counts the values that the script reads from the device in each step (`item()`, `float()`, printing) and
    measures, by events on the device, how long it then stands idle until the next work reaches it.
    ## Why it matters
    A GPU is fed ahead of time. A read waits until it has nothing left to do, and the next step starts cold.
    ## How to fix
    Keep the loss as a tensor (`running += loss.detach()`) and read it every 50 or 100 steps.
    ## When it stays silent
    On a CPU there is nothing to wait for. Reading is common in sound scripts: only idle time counts, with traindoctor's own
    time subtracted.
    """
    environment = record.fact("env")
    if environment is None:
        return sync_every_step.not_judged("the device is not known")
    if environment.get("device") == "cpu":
        return sync_every_step.not_applicable("on a CPU there is no device to wait for")
    reads, idle = record.get("sync.reads"), record.get("sync.idle")
    if reads is None or len(reads) < LEAST_STEPS:
        return sync_every_step.not_judged("too few steps on the device were seen")
    if float(np.median(reads.values)) < 1:
        return sync_every_step.clear("the script does not read from the device at every step")
    step = record.get("time.step")
    if idle is None or len(idle) < FEWEST or step is None or not len(step):
        return sync_every_step.not_judged("the idle time of the device was not measured")
    # Steps in which everything is measured once are longer, on the device too: the shorter ones are the usual ones.
    share = float(np.percentile(idle.values, 25) / max(1e-9, np.percentile(step.values, 25)))
    if share < IDLE_SHARE:
        return sync_every_step.clear(
            f"reads leave the device idle for {100 * share:.0f} % of a step"
        )
    return sync_every_step.finding(
        evidence("share of the step the device is idle after a read", share, 0.0, noise=0.05),
        evidence("values read from the device per step", reads),
        grade="statistic",
        summary=(
            f"the script reads {reads.median():.0f} value(s) from the device in each step, "
            f"and the device is then idle for {100 * share:.0f} % of the step"
        ),
    )
