import numpy as np

from traindoctor.checks.base import Outcome, check, evidence
from traindoctor.record import Record

# Calls of the model in a step, each with one example: fewer are accumulation, which is sound.
CALLS = 4
# What one batched call must save before the loop is called a fault. On one CPU thread a sound loop of 12 saves
# a factor of 1.6: there it does not matter.
GAIN = 2.0


@check(
    code="SPD002",
    slug="python-loop-per-example",
    title="The batch is processed one example at a time",
    needs=["forward.calls"],
    min_steps=4,
    explains=("input-pipeline-bound", "sync-every-step"),
    costs_only_time=True,
)
def python_loop_per_example(record: Record) -> Outcome:
    """
    ## What it does
    Where a step calls the model many times with a single example each, it takes the examples of one step,
    runs a copy of the model on them one by one and once as a batch, forward and backward, and compares the time.
    ## Why it matters
    A device works on a batch in nearly the time of one example; the loop gives that away.
    ## How to fix
    Stack the examples (pad them to one length and mask the padding) and call the model once per batch.
    ## When it stays silent
    One call per micro-batch is accumulation. Where the batched call is not at least twice as fast, the loop
    costs little. Where actions drawn from one answer lead to the next input (an environment), the loop is the task.
    """
    calls, given = record["forward.calls"].median(), record.get("forward.batch")
    batch = given.median() if given is not None else np.nan
    inside = record.fact("forward.inner_loop")
    if inside is not None:  # the loop stands in the model's own forward
        calls, batch = float(inside), 1.0
    if np.isnan(batch) and calls >= CALLS:
        return python_loop_per_example.not_judged("no call of the model gets a tensor")
    if calls < CALLS or batch > 1:
        passes = f"{calls:.0f} forward pass{('' if calls == 1 else 'es')} per step"
        each = "" if np.isnan(batch) else f", {batch:.0f} examples each"
        return python_loop_per_example.clear(passes + each)
    result = record.exam("batched_forward")
    if result is None:
        return python_loop_per_example.not_judged(
            (
                f"{calls:.0f} single-example forward passes per step; the gain of batching them "
                "was not measured"
            ),
            wants="batched_forward",
        )
    if not result.done:
        return python_loop_per_example.not_judged(
            f"the examples could not be run as one batch: {result.reason}"
        )
    gain = float(result.values["gain"])
    spread = float(result.values.get("noise", 0.0))
    if gain - spread < GAIN:
        return python_loop_per_example.clear(f"one batch would be only {gain:.1f} times as fast")
    return python_loop_per_example.finding(
        evidence("time one by one relative to one batch", gain, 1.0, noise=max(spread, 0.05)),
        evidence("single-example forward passes per step", float(np.round(calls, 1)), 1),
        grade="experiment",
        summary=(
            f"each step calls the model {calls:.0f} times with one example; as one batch "
            f"that would be {gain:.1f} times faster"
        ),
        since_step=0,
    )
