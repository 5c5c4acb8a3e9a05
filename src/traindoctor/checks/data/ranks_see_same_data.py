from traindoctor.checks import laws
from traindoctor.checks.base import Outcome, check, evidence, not_comparable
from traindoctor.record import Record, agreement, comparable, held_by_all

# DistributedSampler pads an epoch's end with a few repeated examples: one equal batch proves nothing.
MOST = 0.9
LEAST_STEPS = 8


@check(
    code="DAT006",
    slug="ranks-see-same-data",
    title="Data-parallel ranks work on the same examples",
    law=laws.ANEW,
    explains=("overfitting",),
)
def ranks_see_same_data(record: Record) -> Outcome:
    """
    ## What it does
    Compares the checksums of the batches (inputs and targets) of all ranks, step by step. Where no batch can be
    seen, the losses are compared, bit for bit.
    ## Why it matters
    The gradient is averaged over copies of one batch: all ranks together do the work of one.
    ## How to fix
    Give the DataLoader a `DistributedSampler` (and call `set_epoch`), or shard the data by rank. Where batches
    are drawn at random, seed each rank differently after the model is built.
    ## When it stays silent
    A few repeated examples at an epoch's end; ranks that hold different parts of one model.
    """
    reason = comparable(record)
    if reason is not None:
        return not_comparable(ranks_see_same_data, *reason)
    batches = agreement(record, "batch.fingerprint")
    measure = "batches"
    if batches.steps < LEAST_STEPS:
        batches, measure = agreement(record, "loss.root"), "losses"
    if batches.steps < LEAST_STEPS:
        return ranks_see_same_data.not_judged("too few batches could be compared across ranks")
    if batches.share < MOST:
        return ranks_see_same_data.clear(
            f"{measure} agree across ranks at {batches.equal} of {batches.steps} steps"
        )
    # Ranks that hold different parts of a model must see the same batch.
    if held_by_all(record) or agreement(record, "weights.crc").share < MOST:
        return ranks_see_same_data.not_judged("the ranks hold different weights")
    return ranks_see_same_data.finding(
        evidence(f"share of steps at which all ranks have the same {measure}", batches.share, 0.0),
        evidence("steps compared", batches.steps),
        summary=f"{len(record.ranks)} ranks train on the same batch at {batches.equal} of "
        f"{batches.steps} steps",
        since_step=0,
        grade="exact",
    )
