import numpy as np

from traindoctor.checks import laws
from traindoctor.checks.base import Grade, Outcome, Status, check, done_exam, evidence
from traindoctor.checks.consequences import TOO_SHORT
from traindoctor.checks.course import course_of
from traindoctor.checks.experiments import Experiment
from traindoctor.checks.optimizer.base import last_stage, says_nothing
from traindoctor.record import Record
from traindoctor.record.stages import stretches

# Share of entries that should have moved and did not, in the median layer. float32 runs have under 0.01.
LOST = 0.5
# From this share on the steps are made again with a float32 copy, where the run learns all the same.
SOME = 0.2
EXAM, COPY = "experiment_precision", "float32 copy"
# From this share on a run that learns somewhat is slow for it: 0.77 to 0.98 in the sick runs, one of which came to 0.7
# of its first loss where the same run with a master copy came to 0.23.
MOST, HALVED = 0.7, 0.5
# Moves of weights with a wide spacing, over those that a kept remainder makes of the same updates: 0.0001 where each
# update is rounded by itself, 1.02 in the same run with a master copy, above 0.6 with updates that have no memory at
# all (simulated). Fewer expected moves than the second number tell nothing.
KEPT, EXPECTED = 0.15, 50
# A rate that ends under this share of its peak has decayed; so few settings are no course.
DECAYED, SETTINGS = 0.1, 4


@check(
    code="NUM003",
    slug="low-precision-updates-lost",
    title="Updates are smaller than the spacing of the weights' dtype and are lost",
    needs=[],
    law=laws.RULE,
    undecided="the update rule of this optimizer is not known",
    # Half weights that are filled from float32 copies, and never move, look like weights that nobody steps.
    explains=("params-not-in-optimizer", *TOO_SHORT),
)
def low_precision_updates_lost(record: Record) -> Outcome:
    """
    ## What it does
    Counts the weights that the optimizer's rule, in float64, moves and that came out unchanged; and those of float32
    copies that are back where they were at the next step, on the grid of a half dtype. Where a script steps half
    weights by itself, it counts how often they move: with a remainder that is kept (a master copy), half as often
    where the spacing is twice as wide; where it is lost, not at all beyond some width. A run that learns all the same is
    repeated for some steps with float32 copies of its weights: it is sick where they make it better.
    ## Why it matters
    bfloat16 has 8 bits: a weight of 1 moves in steps of 0.004 to 0.008. An update of 1e-4 is rounded away, every time.
    ## How to fix
    Keep the weights in float32 and let autocast compute in bfloat16; or use stochastic rounding, or an optimizer
    with a compensated (Kahan) or float32 master copy.
    ## When it stays silent
    Weights in float32, a learning rate that has decayed to its end, layers without gradient, runs that are no better with
    float32 copies.
    """
    lost = record.layers("update.lost")
    if lost is None:
        return stepped_by_hand(record)
    lost = lost.after(last_stage(record))
    typical = lost.medians()
    measured = typical[np.isfinite(typical)]
    if not len(measured):
        return low_precision_updates_lost.not_judged("no update was measured")
    middle = float(np.median(measured))
    if (undone := written_over(record)) is not None:
        return undone
    if middle < SOME:
        return low_precision_updates_lost.clear(f"{middle:.1%} of the updates are lost to rounding")
    worst = lost.layers[int(np.nanargmax(typical))]
    rate = record.get("optim.lr")
    decayed = (
        rate is not None
        and len(rate) > SETTINGS
        and rate.last < DECAYED * float(np.nanmax(rate.values))
    )
    first = lost.values[0][np.isfinite(lost.values[0])]
    early = float(np.median(first)) if len(first) else middle
    if decayed and early < LOST:
        return low_precision_updates_lost.clear(
            "updates are lost only after the learning rate has decayed"
        )
    return judged(record, middle, worst, int(lost.steps[0]))


def judged(record: Record, lost: float, worst: str, step: int) -> Outcome:
    """Most updates are lost and the run does not learn: the law decides. Otherwise the same steps with float32 copies do."""
    harmless = lost < LOST or learns_all_the_same(record, lost)
    items = [
        evidence(
            "share of updates lost to rounding, median layer", lost, 0.0, noise=0.02, step=step
        ),
        evidence("worst layer", worst),
    ]
    result = record.exam(EXAM)
    trial = Experiment.of(result)
    if trial is not None and says_nothing(record, trial) is not None:
        trial = None
    grade: Grade = "exact"
    status: Status | None = None
    if harmless and trial is not None:
        if not trial.wins(COPY):
            return low_precision_updates_lost.clear(
                f"{lost:.0%} of the updates are lost to rounding, and with float32 copies of the weights the "
                "run is no better"
            )
        grade = "experiment"
        items.append(trial.evidence(COPY, "float32 copies of the weights"))
    elif lost < LOST:
        if result is None:
            return low_precision_updates_lost.not_judged(
                "float32 copies were not tried", wants=EXAM
            )
        return low_precision_updates_lost.clear(f"{lost:.1%} of the updates are lost to rounding")
    elif harmless:
        status = "possible"
    return low_precision_updates_lost.finding(
        *items,
        summary=(
            f"{lost:.0%} of the weights that should change do not: the update is below the "
            "spacing of their dtype"
        ),
        where=worst,
        since_step=step,
        status=status,
        grade=grade,
        wants=EXAM if status is not None and result is None else None,
    )


def learns_all_the_same(record: Record, lost: float) -> bool:
    """Few updates get through, but enough; where most are lost, the loss must have halved."""
    stages = stretches(record)
    course = course_of(stages[-1] if stages else record)
    if course is None or not course.learned:
        return False
    return lost < MOST or course.last < HALVED * course.first


def stepped_by_hand(record: Record) -> Outcome:
    """Half weights and no optimizer of torch."""
    moves = record.fact("weights.half_moves")
    if moves is None:
        return low_precision_updates_lost.not_judged(
            "no update of the weights was measured", why="not-measured"
        )
    if moves["unmoved"] < LOST:
        return low_precision_updates_lost.clear(
            f"{1 - moves['unmoved']:.0%} of the {moves['dtype']} weights change in a step"
        )
    if moves["expected"] < EXPECTED:
        return low_precision_updates_lost.not_judged("too few weights with different spacing")
    kept = moves["observed"] / moves["expected"]
    if kept >= KEPT:
        return low_precision_updates_lost.clear(
            f"small updates add up: {kept:.0%} of the expected moves happen"
        )
    return low_precision_updates_lost.finding(
        evidence(
            "share of weights with a gradient that do not change in a step",
            moves["unmoved"],
            0.0,
        ),
        evidence(
            "share of the expected moves that happen where the weights' spacing is wide", kept, 1.0
        ),
        grade="statistic",
        summary=(
            f"{moves['unmoved']:.0%} of the {moves['dtype']} weights do not change in a "
            "step, and the rounded-off part is not kept anywhere: weights with a wide "
            "spacing do not change over many steps"
        ),
        since_step=0,
        status="possible" if learns_all_the_same(record, moves["unmoved"]) else None,
    )


def written_over(record: Record) -> Outcome | None:
    """Float32 copies that are filled from the half weights again before each step: what they held in addition is lost."""
    result = done_exam(record, "outside_changes")
    if result is None or result.values.get("undone", 0.0) < LOST:
        return None
    share = float(result.values["undone"])
    return low_precision_updates_lost.finding(
        evidence("share of updates undone before the next step", share, 0.0, step=result.step),
        evidence("what the weights are overwritten with", "half-precision values", "nothing"),
        summary=(
            f"{share:.0%} of the updates of the float32 weights are undone before the next "
            "step: they are refilled from the half-precision weights, in which the update "
            "is below the spacing"
        ),
        remedy=("Copy the float32 weights to the half-precision ones after the step, never back."),
        since_step=0,
        grade="exact",
    )
