from __future__ import annotations

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
    undecided="too few steps that draw random numbers were heard",
    explains=("overfitting", "data-not-shuffled", "ranks-see-same-data"),
    over_batches=True,
)
def batch_not_changing(record: Record) -> Outcome:
    """
    ## What it does
    Compares a fingerprint of the batch's rows, whatever their order, with the step before, and counts how many
    different batches there were. A loader's batches are compared with the one before, and the states that random
    numbers are drawn from with those of earlier steps. Few batches from few random states were drawn from a generator that is seeded again
    and again.
    ## Why it matters
    The model learns one batch by heart: the training loss goes to zero and nothing is learned of the rest.
    ## How to fix
    Iterate over the loader (`for batch in loader`) instead of `next(iter(loader))` in the loop, and draw new
    indices at every step.
    ## When it stays silent
    Data sets that are only one batch large, and small pools whose examples come back in other company: rows
    that were seen before are no fault. Where the same numbers are given at every step and the script holds no data
    that have many more such rows, it is at most possible.
    """
    rowset = record["batch.rowset"]
    same = rowset.values[1:] == rowset.values[:-1]
    steps = len(rowset)
    available = record.fact("loader.batches")
    if same.mean() >= SHARE:
        if available == 1:
            return batch_not_changing.clear("the data set is one batch large")
        held = record.fact("batch.held")
        if held is not None and not available:
            return drawn_again(record) or held_batch(steps, held["times"])
        return batch_not_changing.finding(
            evidence(
                "steps whose rows are those of the step before",
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
            summary=f"The same {different} batches come again and again; the loader has {available}",
            grade="exact",
        )
    if different <= FEW and steps >= ROUNDS * different and seeded_again(record, different):
        return batch_not_changing.finding(
            evidence("different batches", float(different), "new ones at each step"),
            evidence("different random states in all steps", float(different), float(steps)),
            summary=f"The same {different} batches come again and again: the random state that they are drawn from "
            "is set back inside the loop",
            remedy="Seed once, before the loop. Give an evaluation that must be repeatable a generator of its own "
            "(`torch.Generator().manual_seed(0)`).",
            since_step=0,
            grade="exact",
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
        evidence("batches of the loader that repeat the one before", share, 0.0),
        evidence("steps", float(len(after_another))),
        summary=f"{share:.0%} of the loader's batches are an exact repeat of the batch before: its workers deliver the "
        "same data",
        remedy="Each worker has a copy of the data set with its random state. Draw from a generator that is seeded "
        "by `torch.utils.data.get_worker_info().seed`, and let each worker of an iterable data set give its own part.",
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
            "steps that draw the same numbers as an earlier one",
            told["again"],
            0,
            step=int(draw["step"]),
        ),
        summary="The random numbers drawn for the examples of a batch are the same at every step: their generator is "
        "re-seeded in between",
        remedy="Seed a generator once, before the loop, and draw on from it.",
        line=draw["line"],
        since_step=0,
        grade="exact" if told["again"] >= DRAWN_AGAIN else "statistic",
    )


def held_batch(steps: int, times: float | None) -> Outcome:
    """The same numbers at every step, without a loader: a batch taken once or again and again, or the whole data set."""
    if times is None:
        return batch_not_changing.finding(
            evidence("steps with the same numbers", float(steps), "as many as there are"),
            grade="curve",
            summary="Every step trains on the same rows; nothing that the script holds has many more of them, so they "
            "may be the whole data set",
            since_step=0,
        )
    return batch_not_changing.finding(
        evidence("steps with the same numbers", float(steps), 0.0),
        evidence("data of the script that hold these rows, over the batch", times, 1.0),
        summary=f"Every step trains on the same rows, while the script holds {times:.0f} times as much of such data",
        remedy="Draw a new batch inside the loop.",
        since_step=0,
        grade="exact",
    )


def seeded_again(record: Record, different: int) -> bool:
    """The random state goes through as many values as there are batches, round after round."""
    states = record.get("random.crc")
    # One state in all steps: nothing is drawn at all, the few batches are what the data has.
    return states is not None and 1 < len(np.unique(states.values)) <= different
