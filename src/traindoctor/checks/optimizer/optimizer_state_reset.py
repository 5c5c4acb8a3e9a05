import numpy as np

from traindoctor.checks import laws
from traindoctor.checks.base import Outcome, check, evidence
from traindoctor.checks.consequences import NOT_LEARNING
from traindoctor.record import Record

# Restarting a stage a few times is somebody's plan; this many losses of memory are a habit.
RESETS = 4
# Adam's second moment remembers about a thousand steps. Thrown away every 200 steps or more often it never
# gets there; deliberate resets (restarts of adapters) are further apart.
INTERVAL = 200


@check(
    code="OPT007",
    slug="optimizer-state-reset",
    title="The optimizer's state is thrown away again and again",
    needs=["optim.state_reset"],
    min_steps=12,
    of_optimizer=True,
    law=laws.IN_USE,
    explains=("lr-too-high", "adam-settings-bad", "no-warmup", *NOT_LEARNING),
)
def optimizer_state_reset(record: Record) -> Outcome:
    """
    ## What it does
    Follows the state of a parameter: empty before a step though it was there after the last one, or with a step
    count that goes back, it has been thrown away; the optimizer object may be a new one.
    ## Why it matters
    Momentum never builds up, and Adam takes a full-length step of pure noise after each loss.
    ## How to fix
    Build the optimizer once, before the loop, and keep it; do not reload an initial state inside the loop.
    ## When it stays silent
    A single restart, a state that was loaded to resume, optimizers without a state.
    """
    resets = record["optim.state_reset"]
    lost = resets.where(lambda values: values > 0)
    if len(lost) < RESETS:
        return optimizer_state_reset.clear(f"the state was reset {len(lost)} times")
    interval = float(np.median(np.diff(lost.steps)))
    if interval > INTERVAL:
        return optimizer_state_reset.clear(f"the state is reset only every {interval:.0f} steps")
    return optimizer_state_reset.finding(
        evidence("steps that started without state", len(lost), 0, step=int(lost.steps[0])),
        evidence("steps between two resets", interval),
        summary=(
            f"The optimizer's state is thrown away every {f'{interval:.0f} steps' if interval > 1 else 'step'} "
            f"({len(lost)} times), so its moments never build up"
        ),
        since_step=int(lost.steps[0]),
        grade="exact",
    )
