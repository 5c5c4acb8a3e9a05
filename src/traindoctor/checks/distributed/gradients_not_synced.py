from __future__ import annotations

from traindoctor.checks import laws
from traindoctor.checks.base import Outcome, check, evidence, not_comparable
from traindoctor.checks.consequences import NOT_LEARNING
from traindoctor.record import Record, agreement, comparable

# Ranks that share gradients agree to the last bit at every sampled step; ranks that do not, at none. Between
# lie only runs that synchronise now and then.
NEVER = 0.1
LEAST_STEPS = 2


@check(
    code="DST002",
    slug="gradients-not-synced",
    title="Ranks step on their own gradients: nothing averages them",
    law=laws.REPLICAS,
    undecided="the ranks did not start from equal weights",
    explains=("ranks-diverged", *NOT_LEARNING),
)
def gradients_not_synced(record: Record) -> Outcome:
    """
    ## What it does
    Compares, between the ranks, checksums of the gradients that the optimizer gets and of the weights, bit for
    bit, at the same steps. No collective is called: each rank writes its own record.
    ## Why it matters
    Replicas that do not share gradients are several small runs: each learns from its part of the data alone, and
    what is saved is one of them.
    ## How to fix
    Call the `DistributedDataParallel` wrapper, not the module inside it; leave `no_sync()` before the last
    micro-batch; or average the gradients yourself (`all_reduce`, divided by the world size) before the step.
    ## When it stays silent
    Sharded models, ranks that hold different parts of a model, runs whose weights meet again (local SGD).
    """
    reason = comparable(record)
    if reason is not None:
        return not_comparable(gradients_not_synced, *reason)
    gradients = agreement(record, "grad.crc")
    if gradients.steps < LEAST_STEPS:
        return gradients_not_synced.not_judged("too few steps could be compared across ranks")
    if gradients.share > NEVER:
        return gradients_not_synced.clear(
            f"gradients agree bit for bit at {gradients.equal} of {gradients.steps} steps"
        )
    weights = agreement(record, "weights.crc")
    if weights.steps > 1 and weights.equal_after_first:
        return gradients_not_synced.clear("the weights of the ranks agree again later")
    before = agreement(record, "weights.crc_before")
    same_start = before.steps > 0 and before.equal == before.steps
    return gradients_not_synced.finding(
        evidence("share of steps at which the gradients of all ranks agree", gradients.share, 1.0),
        evidence("share of steps after which the weights agree", weights.share, 1.0),
        evidence("weights equal before the first step", str(same_start).lower(), "true"),
        grade="exact" if same_start else "statistic",
        summary=f"the gradients of the {len(record.ranks)} ranks differ at {gradients.steps - gradients.equal} "
        f"of {gradients.steps} steps compared"
        + (", starting from equal weights" if same_start else ""),
        since_step=gradients.first_difference,
    )
