from traindoctor.checks.base import ENOUGH_LOOKS, Outcome, check, evidence, watched
from traindoctor.checks.consequences import NOT_LEARNING
from traindoctor.checks.data.base import share_of_variance
from traindoctor.record import Record
from traindoctor.record.stages import MOST_STRETCHES

# Rows dealt at random stay within 2.1 (57 runs); classes in order gave 297 after 100 batches.
ORDERED = 10.0
# So far beyond it neighbours need not be asked.
FAR_ORDERED = 100.0
# Batches that follow each other are alike: the order itself, not only batches of one class.
NEIGHBOURS = 4.0
# Batches that come again, all after the same number of steps, and not those of a pool of a few.
COME_AGAIN, LEAST_ROUND = 3, 8
# A squared error over the variance within batches: 1.7 where five sites came one after the other, 0.3 with the same
# rows mixed. Under this the order does no harm.
NOT_LEARNED = 0.8


@check(
    code="DAT005",
    slug="data-not-shuffled",
    title="The examples come sorted by class",
    undecided="the run was not repeated with shuffled batches",
    explains=("overfitting", "gradients-exploding", "lr-too-high", *NOT_LEARNING),
    over_batches=True,
    signs=("loss-too-good",),
)
def data_not_shuffled(record: Record) -> Outcome:
    """
    ## What it does
    Measures how alike the labels inside one batch are, against the same rows dealt to batches at random (a
    z-score), and whether neighbouring batches resemble each other. Of the numbers of a regression it asks more: that
    the very same batches come again in the same order, and that nothing is learned of what differs within one.
    ## Why it matters
    A batch of one class pulls all weights towards that class; the next classes undo it. The loss saws, and the
    model ends with the class it saw last.
    ## How to fix
    `DataLoader(..., shuffle=True)`, or shuffle the dataset once before training. With a streaming dataset use
    a large shuffle buffer.
    ## When it stays silent
    Balanced batches have a negative score. Texts without one label per example are not judged; neither are
    batches of one class that follow in random order (grouped by task), which are at most possible. So are numbers
    that drift, as a stream's do; an order that does not keep a regression from learning is no fault. Two stages with
    labels of their own, each of them shuffled, are two runs; so are the clients of a federation, each with an optimizer
    of its own.
    """
    z, numbers = record.get("order.label_z"), record.get("order.number_z")
    if numbers is not None and len(numbers) and (z is None or not len(z) or z.last <= ORDERED):
        return numbers_in_order(record, numbers.last)
    if z is None or not len(z):
        if watched(record) and record.num_steps >= ENOUGH_LOOKS:
            return data_not_shuffled.not_applicable("the examples have no label of their own")
        return data_not_shuffled.not_judged("no per-example labels were seen", why="not-measured")
    if z.last <= ORDERED:
        return data_not_shuffled.clear(
            f"labels within a batch are as mixed as chance would make them (z = {z.last:.1f})"
        )
    begun = record.get("optim.objects")
    if begun is not None and len(begun) > MOST_STRETCHES:
        return data_not_shuffled.not_judged(
            f"{len(begun)} optimizers one after the other, each with examples of its own: the order within each was "
            "not measured"
        )
    neighbours = record.get("order.neighbour_z")
    follow = neighbours.last if neighbours is not None and len(neighbours) else None
    ordered = follow is None or follow > NEIGHBOURS or z.last > FAR_ORDERED
    items = [
        evidence(
            "labels within a batch are far more alike than chance, z",
            z.last,
            0.0,
            noise=1.0,
            step=int(z.steps[-1]),
        )
    ]
    if follow is not None:
        items.append(
            evidence("neighbouring batches are more alike than chance, z", follow, 0.0, noise=1.0)
        )
    return data_not_shuffled.finding(
        *items, grade="statistic", status="likely" if ordered else "possible", since_step=0
    )


def numbers_in_order(record: Record, z: float) -> Outcome:
    """A regression: a stream has an order of its own, so the order must be a choice, and do harm."""
    neighbours = record.get("order.number_neighbour_z")
    follow = neighbours.last if neighbours is not None and len(neighbours) else 0.0
    if z <= ORDERED or follow <= NEIGHBOURS:
        return data_not_shuffled.clear(
            f"targets within a batch are as mixed as chance would make them (z = {min(z, follow):.1f})"
        )
    share = share_of_variance(record, record.num_steps // 4)
    if share is None:
        return data_not_shuffled.not_judged("the effect of the order on the error was not measured")
    if share < NOT_LEARNED:
        return data_not_shuffled.clear(
            f"the targets come in order, yet the error is down to {share:.2f} of their "
            "variance within a batch"
        )
    items = [
        evidence("targets within a batch are far more alike than chance, z", z, 0.0, noise=1.0),
        evidence("neighbouring batches are more alike than chance, z", follow, 0.0, noise=1.0),
        evidence("squared error relative to the variance within batches", share, "under 0.8"),
    ]
    round_ = steps_of_a_round(record)
    if round_ is not None:
        items.append(evidence("steps after which the same batches repeat", float(round_)))
    return data_not_shuffled.finding(
        *items,
        grade="statistic",
        status="possible" if round_ is None else "likely",
        since_step=0,
        summary=(
            "The examples are not shuffled: targets within a batch are alike, and so are "
            "those of neighbouring batches"
        ),
    )


def steps_of_a_round(record: Record) -> int | None:
    """After how many steps the same rows, targets and all, come again: always as many, or None."""
    rowset = record.get("batch.rowset")
    if rowset is None:
        return None
    first: dict[float, int] = {}
    gaps = []
    for step, rows in zip(rowset.steps.tolist(), rowset.values.tolist()):
        if rows in first:
            gaps.append(step - first[rows])
        first.setdefault(rows, step)
    if len(gaps) < COME_AGAIN or min(gaps) < LEAST_ROUND:
        return None
    return int(min(gaps)) if all(gap % min(gaps) == 0 for gap in gaps) else None
