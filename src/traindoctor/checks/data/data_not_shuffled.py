from __future__ import annotations

from traindoctor.checks.base import Outcome, check, evidence
from traindoctor.record import Record

# Rows dealt at random stay within 2.1 (57 runs); classes in order gave 297 after 100 batches.
ORDERED = 10.0
# Batches that follow each other are alike: the order itself, not only batches of one class.
NEIGHBOURS = 4.0


@check(
    code="DAT005",
    slug="data-not-shuffled",
    title="Examples come in the order of their classes",
    needs=["order.label_z"],
)
def data_not_shuffled(record: Record) -> Outcome | None:
    """
    ## What it does
    Measures how alike the labels inside one batch are, against the same rows dealt to batches at random (a
    z-score), and whether neighbouring batches resemble each other.
    ## Why it matters
    A batch of one class pulls all weights towards that class; the next classes undo it. The loss saws, and the
    model ends with the class it saw last.
    ## How to fix
    `DataLoader(..., shuffle=True)`, or shuffle the data set once before training. With a streaming data set use
    a large shuffle buffer.
    ## When it stays silent
    Balanced batches have a negative score. Texts without one label per example are not judged; neither are
    batches of one class that follow in random order (grouped by task), which are at most possible.
    """
    z = record["order.label_z"]
    if z.last <= ORDERED:
        return data_not_shuffled.clear(f"labels are mixed as by chance (z = {z.last:.1f})")
    neighbours = record.get("order.neighbour_z")
    follow = neighbours.last if neighbours is not None and len(neighbours) else None
    ordered = follow is None or follow > NEIGHBOURS or z.last > 10 * ORDERED
    items = [
        evidence(
            "z of likeness of labels within batches", z.last, 0.0, noise=1.0, step=int(z.steps[-1])
        )
    ]
    if follow is not None:
        items.append(evidence("z of likeness of neighbouring batches", follow, 0.0, noise=1.0))
    return data_not_shuffled.finding(
        *items, grade="statistic", status="likely" if ordered else "possible", since_step=0
    )
