import numpy as np

from traindoctor.checks import laws
from traindoctor.checks.base import Outcome, check, evidence
from traindoctor.record import Record, Series

# Healthy: 0 of all steps in 57 runs; sick: all of them. An epoch of one batch is a data set of one batch.
SHARE = 0.9
# Two steps with the same rows can be a retried step; a habit needs more.
LEAST = 8
# So few different batches in so many rounds are a handful of examples, not a data set.
FEW, ROUNDS = 8, 5
# Share of a loader's batches that repeat the one before. Sound: 0 in 9 runs with a loader; the one sick script: a half.
AGAIN = 0.3
# Steps that draw what an earlier one has drawn. Sound: 0 in 147 runs that draw; sick: all heard steps but the first. One
# such step may be a script that seeds once more.
DRAWN_AGAIN = 2


@check(
    code="DAT002",
    slug="batch-not-changing",
    title="Every step trains on the same examples",
    needs=["batch.rowset"],
    min_steps=LEAST,
    law=laws.ANEW,
    undecided="too few steps that draw random numbers were seen",
    explains=("overfitting", "data-not-shuffled", "ranks-see-same-data"),
    over_batches=True,
    signs=("loss-too-good",),
)
def batch_not_changing(record: Record) -> Outcome:
    """
    ## What it does
    Compares a fingerprint of the batch's rows, whatever their order, with the step before, and counts how many
    different batches there were. A loader's batches are compared with the one before, and the states that random
    numbers are drawn from with those of earlier steps. Few batches from few random states were drawn from a generator that is seeded again
    and again.
    ## Why it matters
    The model memorises one batch: the training loss goes to zero and nothing is learned of the rest.
    ## How to fix
    Iterate over the loader (`for batch in loader`) instead of `next(iter(loader))` in the loop, and draw new
    indices at every step.
    ## When it stays silent
    Datasets that are only one batch large, and small pools whose examples come back in other combinations: rows
    that were seen before are no fault. Where the same numbers are given at every step and the script holds no data
    that have many more such rows, it is at most possible.
    """
    rowset = record["batch.rowset"]
    same = rowset.values[1:] == rowset.values[:-1]
    steps = len(rowset)
    available = record.fact("loader.batches")
    if same.mean() >= SHARE:
        if available == 1:
            return batch_not_changing.clear("the dataset is a single batch")
        held = record.fact("batch.held")
        if held is not None and not available:
            return drawn_again(record) or held_batch(steps, held["times"])
        return batch_not_changing.finding(
            evidence(
                "steps with exactly the rows of the step before",
                float(same.sum()),
                0.0,
                step=int(rowset.steps[1]),
            ),
            evidence("steps", float(steps)),
            since_step=int(rowset.steps[0]),
            grade="exact",
        )
    again = record.get("loader.again")
    if again is not None and (twice := given_again(again)) is not None:
        return twice
    if (drawn := drawn_again(record)) is not None:
        return drawn
    different = len(np.unique(rowset.values))
    if different <= FEW and steps >= ROUNDS * different and available and available > 2 * different:
        return batch_not_changing.finding(
            evidence("different batches", float(different), float(available)),
            evidence("steps", float(steps)),
            summary=f"The same {different} batches repeat, although the DataLoader has {available}",
            grade="exact",
        )
    if (states := seeded_again(record)) is not None and steps >= ROUNDS * different:
        return batch_not_changing.finding(
            evidence("different batches", float(different), "new numbers at each step"),
            evidence("distinct random states over all steps", float(states), float(steps)),
            summary=(
                f"The same {different} batches repeat: the random state they are drawn from is "
                "reset inside the loop"
            ),
            remedy=(
                "Seed once, before the loop. If the evaluation must be repeatable, give it its "
                "own generator (`torch.Generator().manual_seed(0)`)."
            ),
            since_step=0,
            grade="exact",
            # So many may be all that the data has, in an order that is drawn anew from one seed.
            status=None if different <= FEW else "possible",
        )
    return batch_not_changing.clear(f"{different} different batches in {steps} steps")


def given_again(again: Series) -> Outcome | None:
    """Two workers that give the same give every batch twice, one after the other."""
    # Where a step was not heard, what was given before is not known.
    after_another = again.values[1:][np.diff(again.steps) == 1]
    share = float(after_another.mean()) if len(after_another) >= LEAST else 0.0
    if share < AGAIN:
        return None
    return batch_not_changing.finding(
        evidence("DataLoader batches identical to the one before", share, 0.0),
        evidence("steps", float(len(after_another))),
        summary=(
            f"{share:.0%} of the DataLoader's batches repeat the previous batch exactly: its "
            "workers deliver the same data"
        ),
        remedy=(
            "Each DataLoader worker has its own copy of the dataset, random state included. "
            "Draw from a generator seeded with `torch.utils.data.get_worker_info().seed`, "
            "and let each worker of an IterableDataset yield its own share."
        ),
        since_step=int(again.steps[0]),
        grade="exact",
    )


def drawn_again(record: Record) -> Outcome | None:
    """Random numbers for the examples of a batch that are the same at every step."""
    told = record.fact("draws")
    if not told or not told["again"] or 2 * told["again"] < told["steps"]:
        return None
    draw, rows = told["draw"], int(record["batch.rows"].median())
    # Otherwise it is a table that is made anew from its seed, not numbers for examples.
    if rows not in draw["shape"][:2]:
        return None
    return batch_not_changing.finding(
        evidence("steps that draw random numbers", told["steps"]),
        evidence(
            "steps that draw the same numbers as an earlier step",
            told["again"],
            0,
            step=int(draw["step"]),
        ),
        summary=(
            "The same random numbers are drawn for the batch at every step: the generator "
            "is re-seeded between steps"
        ),
        remedy="Seed the generator once, before the loop, and keep drawing from it.",
        line=draw["line"],
        since_step=0,
        grade="exact" if told["again"] >= DRAWN_AGAIN else "statistic",
    )


def held_batch(steps: int, times: float | None) -> Outcome:
    """The same numbers at every step, without a loader: a batch taken once or again and again, or the whole data set."""
    if times is None:
        return batch_not_changing.finding(
            evidence("steps with the same numbers", float(steps), "all of them"),
            grade="curve",
            summary=(
                "Every step trains on the same rows; the script holds no larger data, so they "
                "may be the whole dataset"
            ),
            since_step=0,
        )
    return batch_not_changing.finding(
        evidence("steps with the same numbers", float(steps), 0.0),
        evidence(
            "size of the script's data that contains these rows, relative to the batch", times, 1.0
        ),
        summary=(
            f"Every step trains on the same rows, although the script holds {times:.0f} "
            "times as much data of this kind"
        ),
        remedy="Draw a new batch inside the training loop.",
        since_step=0,
        grade="exact",
    )


def seeded_again(record: Record) -> int | None:
    """How many states random numbers are drawn from, where each comes back, and the batch that was drawn from it with it.

    One state under several batches: nothing is drawn, the few batches are what the data has.
    """
    states, rowset = record.get("random.crc"), record["batch.rowset"]
    if states is None:
        return None
    _, here, there = np.intersect1d(states.steps, rowset.steps, return_indices=True)
    state, rows = states.values[here], rowset.values[there]
    num_states, num_batches = len(np.unique(state)), len(np.unique(rows))
    pairs = len(np.unique(np.stack([state, rows]), axis=1).T)
    return num_states if 1 < num_states == pairs == num_batches else None
