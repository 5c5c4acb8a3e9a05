from traindoctor.checks import laws
from traindoctor.checks.base import Outcome, check, evidence, not_comparable
from traindoctor.checks.consequences import NOT_LEARNING
from traindoctor.checks.distributed.base import (
    LEAST_STEPS,
    NEVER,
    of_ranks,
    weights_meet_again,
)
from traindoctor.record import Record, agreement, comparable, unlike_the_others


@check(
    code="DST001",
    slug="ranks-diverged",
    title="The replicas hold different weights",
    law=laws.REPLICAS,
    explains=NOT_LEARNING,
)
def ranks_diverged(record: Record) -> Outcome:
    """
    ## What it does
    Compares checksums of the weights of all ranks, before the first step and after sampled steps, bit for bit.
    ## Why it matters
    The averaged gradient belongs to none of the replicas: each is pushed by what the others' weights say.
    ## How to fix
    Start all ranks from the same weights: wrap the model in `DistributedDataParallel` (it broadcasts them), or
    broadcast them yourself; seed before the model is built; load checkpoints on every rank.
    ## When it stays silent
    Sharded models, buffers such as BatchNorm statistics, runs whose weights meet again (local SGD).
    """
    reason = comparable(record)
    if reason is not None:
        return not_comparable(ranks_diverged, *reason)
    weights, gradients = agreement(record, "weights.crc"), agreement(record, "grad.crc")
    if weights.steps < LEAST_STEPS:
        return ranks_diverged.not_judged("too few steps could be compared across ranks")
    if weights.equal == weights.steps:
        return ranks_diverged.clear(
            f"weights agree bit for bit at all {weights.steps} steps compared"
        )
    if weights_meet_again(record):
        return ranks_diverged.clear("the weights of the ranks agree again later")
    if gradients.share <= NEVER:
        return ranks_diverged.not_judged(
            "the ranks step on different gradients, so their weights must differ"
        )
    before = agreement(record, "weights.crc_before")
    from_start = before.steps > 0 and not before.equal_at_first
    shared = gradients.equal == gradients.steps
    at = "" if shared else f" at {gradients.equal} of {gradients.steps} steps"
    odd = unlike_the_others(record, "weights.crc", weights.first_difference or 0)
    return ranks_diverged.finding(
        evidence("share of steps at which the weights of all ranks agree", weights.share, 1.0),
        evidence("share of steps at which their gradients agree", gradients.share, 1.0),
        evidence("weights equal before the first step", str(not from_start).lower(), "true"),
        summary=f"the {len(record.ranks)} ranks share their gradients{at} but hold different weights "
        + ("from the start" if from_start else f"since step {weights.first_difference}")
        + (f": those of {of_ranks(odd)} are not those of the others" if odd else ""),
        since_step=0 if from_start else weights.first_difference,
        grade="exact",
    )
