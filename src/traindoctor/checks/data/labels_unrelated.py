from collections.abc import Mapping
from typing import Any

import numpy as np

from traindoctor.checks.base import Finding, Outcome, check, done_exam, evidence
from traindoctor.checks.consequences import NOT_LEARNING
from traindoctor.checks.course import LATE, above_level
from traindoctor.checks.data.base import (
    ERRORS,
    order_is_lost,
    reference,
    rolled_over_the_batch,
    share_of_variance,
)
from traindoctor.record import Record, Series

# z of the permutation test: 1.1 where labels were shuffled apart, 30 to 231 in healthy classifiers (2 in chance).
RELATED, UNRELATED = 10.0, 3.0
LEAST_ROWS = 256
# The loss stands on the entropy of the labels: mean difference in nats over so many steps.
LEVEL, STEPS = 0.05, 40
# A squared error over the variance of the targets from which on nothing was learned: 1.0 +- 0.1 for numbers that were
# sorted apart from their inputs, under 0.5 after 100 steps in sound regressions.
NUMBERS_LEARNED = 0.8
# A plain model whose error is under guessing by so much, and beyond its noise, has found something: a denoiser that
# can know no more ends at 0.92, numbers sorted apart at 1.0 and more.
NUMBERS_TOLD = 0.03
# A gain that must be excluded before it is said that there is none: that of a denoiser on its way.
NUMBERS_KNOWN = 0.1
# Nats under the entropy of the labels that knowing examples by heart gives: 0.045 after eight passes over 960
# examples with labels dealt at random. Only examples that come again can be known so.
BY_HEART = 0.1
# Only what was seen before is known better than by guessing: after a first pass of so many steps that stood on the level,
# with a relation test on so many examples that found nothing. Under half of the entropy it may be anything.
FIRST_PASS, MANY_ROWS, HALF = 12, 512, 0.5
# Batches whose rows join parts of different examples: all that were looked at, but for one in the right order by chance.
DEALT_BATCHES, DEALT_SHARE = 3, 0.75
# Repeated inputs with labels that agree no more than by chance.
REPEATS, AGREEMENT = 50, 0.2
# Tokens per example from which on single tokens are expected to tell something.
LONG = 5


@check(
    code="DAT003",
    slug="labels-unrelated",
    title="The targets have nothing to do with the inputs",
    needs=["batch.rows"],
    undecided="that a task cannot be learned can be shown to be likely, never proven",
    explains=("overfitting", "lr-too-low", *NOT_LEARNING),
    over_batches=True,
)
def labels_unrelated(record: Record) -> Outcome:
    """
    ## What it does
    Sums the squared correlations between what stands in an example and its targets, and compares the sum with
    the same data after the targets were dealt to other examples. Also looks whether equal inputs have equal
    labels, and whether the loss ever leaves the entropy of the labels. For texts it is exact: targets that are
    the next tokens of another row of the batch were shuffled apart. In the first batches of a loader without workers the
    examples that `collate_fn` was given are looked for in what it gave: all their parts must come in one order.
    ## Why it matters
    Inputs and labels that were shuffled or sorted apart cannot be learned, only memorised.
    ## How to fix
    Shuffle inputs and labels with one permutation; sort or filter them together; print a few pairs and read them.
    ## When it stays silent
    When the relation is plain in the data (z over 10), or the loss has left the entropy of the labels on
    examples it had not seen. Tasks where only combinations of tokens count (parity) show no pairwise
    relation: without other evidence they are at most possible.
    """
    dealt = dealt_rows(record) or joined_apart(record)
    if dealt is not None:
        return dealt
    if (pair := rolled_over_the_batch(record)) is not None:
        return rolled(pair)
    if (share := share_of_variance(record)) is not None:
        return numbers(record, share)
    z, rows = record.get("relation.z"), record.get("relation.rows")
    if z is None or not len(z):
        return labels_unrelated.not_judged(
            "inputs and targets could not be compared", why="not-measured"
        )
    num_rows = rows.last if rows is not None and len(rows) else 0
    if z.last >= RELATED or max(z.values) >= 2 * RELATED:
        return labels_unrelated.clear(f"inputs and targets are clearly related (z = {z.last:.0f})")
    gap = level_gap(record)
    if gap is None:
        return labels_unrelated.not_judged(
            "the loss cannot be compared with the entropy of the labels"
        )
    late = late_gap(record)
    heart = (
        late is not None
        and num_rows >= MANY_ROWS
        and z.last < UNRELATED
        and only_by_heart(record, gap, late)
    )
    if gap.tail(STEPS).median() < -2 * LEVEL and not heart:
        return labels_unrelated.clear("the loss is below the entropy of the labels")
    if late is not None and late < -(BY_HEART if repeats_examples(record) else LEVEL) and not heart:
        return labels_unrelated.clear("the loss ends below the entropy of the labels")
    # Just under it: the run learns, or begins to know its examples by heart. A model that has not seen them tells.
    leaving = late is not None and late < -LEVEL / 2
    if num_rows < LEAST_ROWS:
        return labels_unrelated.not_judged(f"too few examples were seen to tell (z = {z.last:.1f})")
    on_level = int((np.abs(smooth(gap.values)) < LEVEL).sum())
    if not heart and (on_level < STEPS or abs(gap.tail(STEPS).median()) > 2 * LEVEL):
        return labels_unrelated.not_judged(
            "the loss has not stayed at the entropy of the labels for long enough"
        )
    return unless_learnable(record, z, gap, leaving=leaving)


def rolled(pair: Mapping[str, Any]) -> Finding:
    return labels_unrelated.finding(
        evidence("share of targets equal to the next input along that axis, wrapping around", 1.0),
        evidence("axis along which the tokens were rolled", pair["axis"], 1 - pair["axis"]),
        summary=(
            "The targets were rolled along the batch axis: each belongs to the neighbouring "
            "row, while the model attends along the other axis"
        ),
        remedy="Roll or slice along time: `ids[:-1], ids[1:]` for (time, batch), `ids[:, :-1], ids[:, 1:]` for "
        "(batch, time).",
        line=pair["line"],
        since_step=0,
        grade="exact",
    )


def unless_learnable(record: Record, z: Series, gap: Series, *, leaving: bool) -> Outcome:
    """The loss stands on the entropy of labels that nothing relates to the inputs: can a reference model do better?"""
    agreement, repeats = record.get("relation.agreement"), record.get("relation.repeats")
    items = [
        evidence(
            "relation between inputs and targets against chance, z", z.last, RELATED, noise=1.0
        ),
        evidence("loss minus the entropy of the labels", gap.tail(STEPS).median(), "below 0"),
    ]
    contradicted = False
    if agreement is not None and repeats is not None and repeats.last >= REPEATS:
        contradicted = agreement.last < AGREEMENT
        items.append(
            evidence(
                "agreement between the labels of identical inputs", agreement.last, 1.0, noise=0.05
            )
        )
    # Two or three signs per example are a made-up task, in which single signs may tell nothing.
    length = record.get("batch.tokens")
    per_row = length.median() / max(1.0, record["batch.rows"].median()) if length else 0.0
    # Chance goes to 3 and a little beyond; a faint relation too. A model that has seen neither tells.
    faint = z.last >= UNRELATED
    sure = not faint and (contradicted or per_row >= LONG)
    learnable = reference(record)
    if order_is_lost(record):
        sure = False  # what the labels depend on may be the order: a model that sees it is asked
    if learnable is not None:
        better, gain, noise = learnable
        if better:
            return labels_unrelated.clear("a reference model learns the same data")
        sure = sure or order_is_lost(record) or (faint and per_row >= LONG)
        items.append(
            evidence(
                "gain of a reference model over guessing, in nats", gain, "above 0.1", noise=noise
            )
        )
    elif (leaving or not sure) and record.exam("reference_model") is None:
        return labels_unrelated.not_judged(
            "no reference model was trained", wants="reference_model"
        )
    elif leaving:
        return labels_unrelated.not_judged(
            "the loss may just be starting to fall below the entropy of the labels"
        )
    return labels_unrelated.finding(
        *items, grade="statistic", status="likely" if sure else "possible", since_step=0
    )


def numbers(record: Record, share: float) -> Outcome:
    """A regression: does its error stay at what guessing the mean costs, and does nobody do better?"""
    if share < NUMBERS_LEARNED:
        return labels_unrelated.clear(f"the error is down to {share:.2f} of the targets' variance")
    learnable = reference(record, "reference_numbers")
    if learnable is None:
        tried = record.exam("reference_numbers")
        wants = "reference_numbers" if tried is None else None
        return labels_unrelated.not_judged(
            "no reference model was trained on these targets", wants=wants
        )
    better, gain, noise = learnable
    if better or gain > max(NUMBERS_TOLD, ERRORS * noise):
        return labels_unrelated.clear("a reference model learns the same targets")
    if gain + ERRORS * noise > NUMBERS_KNOWN:
        return labels_unrelated.not_judged(
            "it is not certain whether a reference model learns these targets"
        )
    return labels_unrelated.finding(
        evidence("squared error relative to the variance of the targets", share, "well under 1"),
        evidence(
            "the same for a reference model, on batches it had not seen",
            1 - gain,
            "well under 1",
            noise=noise,
        ),
        grade="statistic",
        since_step=0,
        summary=(
            "The targets have nothing to do with the inputs: the error is no better than "
            "predicting their mean, and a reference model on the same batches does no "
            "better either"
        ),
    )


def dealt_rows(record: Record) -> Outcome | None:
    """Rows of targets that fit other rows of inputs, place by place."""
    result = done_exam(record, "shift")
    if result is None:
        return None
    for pair in result.values["pairs"]:
        if pair.get("dealt"):
            moved = pair["dealt"]["moved"]
            return labels_unrelated.finding(
                evidence("share of rows whose targets belong to another row", moved, 0.0),
                evidence("positions compared", pair["dealt"]["compared"], step=result.step),
                summary=(
                    f"Inputs and targets are in different orders: {moved:.0%} of the rows carry the "
                    "targets of another row of the batch"
                ),
                line=pair["line"],
                since_step=0,
                grade="exact",
            )
    return None


def joined_apart(record: Record) -> Outcome | None:
    """Batches whose parts are in different orders when the loader gives them, all that were looked at."""
    fact = record.fact("batch.collated") or {}
    if fact.get("dealt", 0) < DEALT_BATCHES or fact["dealt"] < DEALT_SHARE * fact["batches"]:
        return None
    return labels_unrelated.finding(
        evidence("share of rows that join parts of different examples", fact["moved"], 0.0),
        evidence("batches in which they do", fact["dealt"], 0),
        summary=(
            f"The function that joins examples to a batch sorts some of their parts and not the others: "
            f"{fact['moved']:.0%} of the rows mix two examples"
        ),
        remedy="In `collate_fn` sort the examples themselves, then take their parts; or apply the one order to every part.",
        since_step=0,
        grade="statistic",
        undecided="the script may put the rows in order again after the loader",
    )


def level_gap(record: Record) -> Series | None:
    """Loss per target minus the count model of the targets alone, where both were measured."""
    gap = above_level(record, "ladder.unigram")
    return gap.finite() if gap is not None and len(gap.finite()) >= LATE else None


def late_gap(record: Record) -> float | None:
    """The same at the run's end, from the loss of every step: the loss per target is measured more rarely there."""
    root, token, level = (record.get(n) for n in ("loss.root", "loss.token", "ladder.unigram"))
    if root is None or token is None or level is None or len(root.finite()) < 2 * STEPS:
        return None
    _, of_root, of_token = root.beside(token)
    ratios = of_token / of_root
    ratios = ratios[np.isfinite(ratios)]
    if not len(ratios):
        return None
    ends = root.finite().tail(len(root) // 4).values * np.median(ratios)
    return float(np.mean(ends) - np.median(level.finite().values))


def repeats_examples(record: Record) -> bool:
    """The last batches looked at are of examples that were seen before."""
    new = record.get("batch.new_rows")
    return (
        new is not None and len(new) >= STEPS and float(np.mean(new.tail(STEPS // 4).values)) < HALF
    )


def only_by_heart(record: Record, gap: Series, late: float) -> bool:
    """One label for each row, examples that come again, and no step under the entropy before they did."""
    new, level = record.get("batch.new_rows"), record["ladder.unigram"].finite().median()
    targets, rows = record.get("target.total"), record["batch.rows"]
    if new is None or not repeats_examples(record) or late < -HALF * level:
        return False
    if targets is None or targets.median() > rows.median():
        return False
    again = new.steps[new.values < HALF]
    first = gap.values[gap.steps < again[0]]
    return len(first) >= FIRST_PASS and float(np.mean(first[len(first) // 2 :])) > -LEVEL / 2


def smooth(values: np.ndarray) -> np.ndarray:
    width = min(20, len(values))
    return np.convolve(values, np.ones(width) / width, mode="valid") if width else values
