import numpy as np

from traindoctor.checks.base import Outcome, check, evidence
from traindoctor.record import Record, Series

# Share of the step from the end of one step to the next forward pass. Measured: 0.70 where the data is slow, at
# most 0.12 in 90 other runs (one that draws its images in the script); the bar stands between.
SHARE = 0.4
# Of a step that is over in a few milliseconds nobody misses the half.
LEAST_SECONDS = 0.005
# Without a DataLoader the time is the script's own code, which may also log or save: ask for more.
OWN_SHARE, OWN_SECONDS = 0.5, 0.02
# The first steps compile, allocate and fill queues.
WARM_UP = 4


@check(
    code="SPD001",
    slug="input-pipeline-bound",
    title="The step waits for its data",
    needs=["time.step", "time.data", "time.loader"],
    min_steps=12,
    undecided="a faster input pipeline was not tried",
    costs_only_time=True,
)
def input_pipeline_bound(record: Record) -> Outcome:
    """
    ## What it does
    Takes the median, over the steps, of the time between the end of one step and the next training forward
    pass, and of the time inside `DataLoader.__next__`, as shares of the step. Steps with an evaluation in
    between are left out.
    ## Why it matters
    The model, and the device it is paid for, stand still while batches are read, tokenised or augmented.
    ## How to fix
    Give the DataLoader workers (`num_workers=4, persistent_workers=True`, `pin_memory=True` on a GPU), prepare
    the data once and store it as tensors, and move slow work out of `__getitem__` and `collate_fn`.
    ## When it stays silent
    Waiting now and then (a checkpoint, an evaluation, an epoch's first batch) does not move a median.
    """
    waiting, step = shares(record["time.data"], record["time.step"])
    loading, _ = shares(record["time.loader"], record["time.step"])
    if len(waiting) < WARM_UP:
        return input_pipeline_bound.not_judged("too few steps without an evaluation in between")
    wait, load, seconds = (float(np.median(x)) for x in (waiting, loading, step))
    if wait < SHARE or wait * seconds < LEAST_SECONDS:
        return input_pipeline_bound.clear(f"the step waits for data {100 * wait:.0f} % of its time")
    spread = float(np.subtract(*np.percentile(waiting, [75, 25]))) / 2
    in_loader = load >= SHARE
    if not in_loader and (wait < OWN_SHARE or wait * seconds < OWN_SECONDS):
        return input_pipeline_bound.clear("the time between the steps is not spent in a DataLoader")
    place = (
        "inside the DataLoader" if in_loader else "in the script's own code before the forward pass"
    )
    return input_pipeline_bound.finding(
        evidence("share of the step before the forward pass", wait, 0.0, noise=max(spread, 0.01)),
        evidence(
            "share of the step spent in DataLoader.__next__", load, 0.0, noise=max(spread, 0.01)
        ),
        evidence("seconds of a step", seconds),
        grade="statistic",
        summary=f"{100 * wait:.0f} % of each step ({1e3 * wait * seconds:.0f} of {1e3 * seconds:.0f} ms) "
        f"passes before the forward pass begins, {place}",
        status=None if in_loader else "possible",
        since_step=int(record["time.data"].steps[0]),
    )


def shares(part: Series, whole: Series) -> tuple[np.ndarray, np.ndarray]:
    """(part / whole, whole) at the steps that have both, warm-up left out."""
    common, of, total = part.beside(whole)
    of, total = of[common >= WARM_UP], total[common >= WARM_UP]
    return of / np.maximum(total, 1e-9), total
