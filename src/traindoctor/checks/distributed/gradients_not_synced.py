from traindoctor.checks import laws
from traindoctor.checks.base import Outcome, check, evidence, not_comparable
from traindoctor.checks.consequences import NOT_LEARNING
from traindoctor.checks.distributed.base import LEAST_STEPS, NEVER, weights_meet_again
from traindoctor.record import Record, agreement, comparable, overwritten


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
    bit, at the same steps. No collective is called: each rank writes its own record. Also found: steps whose
    weights are overwritten by those of one rank before the next.
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
    lost = overwritten(record)
    if len(lost) >= LEAST_STEPS:
        step, kept = lost[0]
        return gradients_not_synced.finding(
            evidence("steps after which different weights were overwritten", len(lost), 0),
            evidence("rank whose weights all ranks have then", kept),
            grade="exact",
            summary=f"after a step the {len(record.ranks)} ranks hold different weights, and before the next one all get "
            f"those of rank {kept}: what the others learned is lost",
            remedy=(
                "Wrap the model in `DistributedDataParallel` once, before the loop: every new wrapper sends "
                "the weights of rank 0 to all. Call the wrapper, so that gradients are averaged."
            ),
            since_step=step,
        )
    if gradients.share > NEVER:
        return gradients_not_synced.clear(
            f"gradients agree bit for bit at {gradients.equal} of {gradients.steps} steps"
        )
    if weights_meet_again(record):
        return gradients_not_synced.clear("the weights of the ranks agree again later")
    weights = agreement(record, "weights.crc")
    same_start = agreement(record, "weights.crc_before").equal_at_first
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
