import math

from traindoctor.checks.base import Outcome, check, evidence
from traindoctor.checks.consequences import NOT_LEARNING, TOO_LONG
from traindoctor.checks.course import NO_MEASURE, Course, course_of, two_signs
from traindoctor.checks.experiments import Experiment
from traindoctor.checks.optimizer.base import FULL_RATE, first_norm, is_log, says_nothing, warms_up
from traindoctor.record import Record

EXAM = "experiment_rate_down"
LONG = "experiment_rate_long"
# Steps that are replayed from the start.
FIRST = 40
# Steps of a run that has had the time to get on: healthy ones leave the level of frequencies within 30 to 100.
MANY = 100
SHARES = {"lr/3": "a third", "lr/10": "a tenth", "lr/100": "a hundredth"}
PARTS = {"lr/3": 1 / 3, "lr/10": 1 / 10, "lr/100": 1 / 100}


@check(
    code="OPT001",
    slug="lr-too-high",
    title="The learning rate is too high: with a lower one the same run learns",
    needs=["optim.lr"],
    min_steps=8,
    undecided="the gain from a lower learning rate is too small to be sure",
    explains=("nan-from-op", *TOO_LONG, *NOT_LEARNING),
    signs=("always-clipped",),
)
def lr_too_high(record: Record) -> Outcome:
    """
    ## What it does
    Replays the first steps of the run from its own initial weights and batches, once as it was and once with a
    third, a tenth and a hundredth of the learning rate, and compares the loss on the batches that come after them. Replays
    whose batches come in another order give the noise. A run that is stuck is asked for longer, and where there is no
    time to repeat it, its own losses on its latest batches stand for it: a lower rate must do better there, after no more
    steps.
    ## Why it matters
    Steps that are too long throw the weights out of the region where the gradient means anything: the loss
    explodes, or drops to the level of token frequencies and stays there.
    ## How to fix
    Divide the learning rate by 3 to 10; with Adam on a transformer from scratch, 1e-4 to 3e-3 is usual. Add a
    warm-up and clip the gradient norm at 1.
    ## When it stays silent
    A loss that is now above, now below 0 (policy gradients): its level is no measure of success, and the reward is not
    known. Losses with parts that are held fixed and move with the weights (a codebook, a value that learns from itself). A lower rate that wins by annealing alone (a few hundredths of a nat), and runs that learn well: there the
    experiment is not asked for. Large gradients whose clipping makes the same rate learn far better than any lower
    one does. A line search along one update does not decide this: its best length is 1 in
    runs that blow up and 0.1 in healthy ones.
    """
    if is_log(record):
        return lr_too_high.not_judged("a log cannot be repeated with another learning rate")
    if two_signs(record):
        return lr_too_high.not_judged(NO_MEASURE)
    reached = course_of(record)
    stuck = reached is not None and reached.stuck and len(record["optim.lr"]) >= MANY
    if stuck and rises_on(record):
        # The first steps are part of the warm-up, and look alike at any rate.
        outcome = by_many_steps(record, reached)
        if outcome is not None:
            return outcome
    result = record.exam(EXAM)
    if result is None:
        if reached is not None and reached.learned_well:
            return lr_too_high.clear(reached.how_far)
        return lr_too_high.not_judged(
            "the run was not repeated with a lower learning rate", wants=EXAM
        )
    trial = Experiment.of(result)
    if trial is None:
        return lr_too_high.not_judged(result.reason, wants=EXAM)
    if (reason := says_nothing(record, trial)) is not None:
        return lr_too_high.not_judged(reason)
    share = _share_that_learns(trial)
    unstable = trial.breaks_sometimes or (reached is not None and reached.spiked)
    if share is None and unstable:
        # The loss jumps above that of the untrained model: beside that a smaller gain is enough to be likely.
        share = next((name for name in SHARES if trial.below_all(name)), None)
    if share is None and stuck:
        # The first steps of a run that stops later on look alike at any rate.
        outcome = by_many_steps(record, reached)
        if outcome is not None:
            return outcome
    if share is None:
        return lr_too_high.clear("a lower learning rate does not learn better")
    return too_high(record, reached, trial, share)


def by_many_steps(record: Record, reached: Course | None) -> Outcome | None:
    """What more steps than the other experiments make say; None where they do not speak against the rate."""
    result = record.exam(LONG)
    if result is None:
        return lr_too_high.not_judged(
            "more steps at a lower learning rate were not tried", wants=LONG
        )
    trial = Experiment.of(result)
    if trial is None or reached is None or trial.moving or not trial.faithful:
        return None
    share = next((name for name in SHARES if trial.speaks_for(reached, name)), None)
    return None if share is None else too_high(record, reached, trial, share)


def too_high(record: Record, reached: Course | None, trial: Experiment, share: str) -> Outcome:
    """A share of the rate learns where the run does not: is it the rate, and nothing else?"""
    if reached is not None and reached.solved:
        return lr_too_high.clear("the loss is already next to zero")
    if trial.outdone(reached, SHARES):
        return lr_too_high.clear("the run itself got as far")
    if trial.warmup_cures and not warms_up(record):
        return lr_too_high.clear("with a warm-up the same learning rate learns as well")
    if trial.clipping_cures(first_norm(record)):
        return lr_too_high.clear("with gradient clipping the same learning rate learns far better")
    rate = record["optim.lr"]
    tried = [name for name in SHARES if name in trial.variants and not trial.blown[name]]
    best = min(tried, key=lambda name: trial.variants[name])
    return lr_too_high.finding(
        *(
            trial.evidence(name, f"{SHARES[name]} of the learning rate")
            for name in {best: 0, share: 0}
        ),
        evidence("learning rate", float(rate.values.max())),
        grade="experiment" if trial.wins(share) else "statistic",
        summary=(
            f"The learning rate ({rate.values.max():.3g}) is too high: from the same weights "
            f"and on the same batches, {SHARES[best]} of it reaches a loss of "
            f"{trial.variants[best]:.3f} where this run {(f'is at {trial.control:.3f}' if math.isfinite(trial.control) else 'breaks')}"
        ),
        remedy=(
            f"Set the learning rate to about {rate.values.max() * PARTS[best]:.2g}. A "
            "warm-up and clipping the gradient norm at 1 allow a higher one."
        ),
        since_step=trial.start,
    )


def rises_on(record: Record) -> bool:
    """The rate is still on its way up when the replayed first steps end."""
    rate = record["optim.lr"].finite()
    early = rate.values[rate.steps < FIRST]
    return len(early) > 0 and float(early.max()) < FULL_RATE * float(rate.values.max())


def _share_that_learns(trial: Experiment) -> str | None:
    """A tenth or a hundredth that wins, the next larger share being no worse than the run, or blown up like it."""
    for name, larger in (("lr/10", "lr/3"), ("lr/100", "lr/10")):
        blows = trial.control_blown and trial.blown.get(larger, False)
        if trial.wins(name) and (blows or trial.wins(larger) or trial.leans(larger)):
            return name
    return None
