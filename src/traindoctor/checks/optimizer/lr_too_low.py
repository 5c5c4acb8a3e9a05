import math

from traindoctor.checks.base import Finding, Outcome, check, evidence
from traindoctor.checks.consequences import NOT_LEARNING
from traindoctor.checks.course import NO_MEASURE, Course, course_of, two_signs
from traindoctor.checks.experiments import Experiment
from traindoctor.checks.optimizer.base import DECAYED, FIRST_RATES_ALONE, is_log, rate_trace
from traindoctor.record import Record

EXAM = "experiment_rate_up"
# Best gain of a higher rate over the run's own gain: 60 in the sick case, up to 14 in a sound but slow run that
# rests on a plateau. Ten is enough beside updates that do nothing; alone it must be far more.
GAIN_RATIO = 10.0
GAIN_RATIO_ALONE = 30.0
# A loss this far above what frequencies alone give (nats): no plateau of a sound run, which learns them within its
# first steps. 1.2 after 150 short steps of a sick run; the same run at a usual rate had 0.07 after 20.
OVER_FREQUENCIES = 0.3
# ... beside a higher rate that goes this share of the way to them within the experiment (0.87 in the sick run).
WAY_TO_FREQUENCIES = 0.5
# ... and that has had so many steps to learn them: a sound run at 1e-4 was 1.3 above them after 24.
STEPS_FOR_FREQUENCIES = 100
# An update that moves the predictions by less than this many nats per position does nothing: 3e-8 in the
# sick case, at least 1.3e-5 in healthy ones once warm-up is over.
KL_NOTHING = 1e-6
# Runs whose steps move the weights by this share or more are not short-stepped (healthy 8e-4 to 8e-3).
LONG_ENOUGH = 5e-4
# All steps in one direction would not have moved the weights by more than this: nothing can have been learned.
MOVED_NOWHERE = 0.01
# ... beside a loss this close to ln(classes), or above it, over the last points.
AT_GUESS, GUESSES = 0.1, 10


@check(
    code="OPT003",
    slug="lr-too-low",
    title="The learning rate is far too low: many times as much learns many times faster",
    needs=["optim.lr"],
    min_steps=20,
    undecided="the gain from a higher learning rate is too small to be sure",
    explains=NOT_LEARNING,
)
def lr_too_low(record: Record) -> Outcome:
    """
    ## What it does
    Replays late steps of the run with 10 and 100 times the rate, beside the run as it was. It asks for a tenfold
    gain, and looks at how little one update changes the predictions, or how far the loss still is above what
    the frequencies of the targets alone give.
    ## Why it matters
    The run looks calm and healthy and would need weeks to get anywhere.
    ## How to fix
    Multiply the rate by 10 until the loss no longer falls faster; then go back by 3.
    ## When it stays silent
    While the rate still rises, at the end of a decay that a run has learned under, when the run starts from trained weights (small steps are
    customary there), and when a higher rate gains only a few times as much: a short step is not a wrong step.
    """
    if is_log(record):
        return lr_too_low.not_judged("a log cannot be repeated with another learning rate")
    if two_signs(record):
        return lr_too_low.not_judged(NO_MEASURE)
    trace = rate_trace(record)
    if trace is None:
        return lr_too_low.not_judged("the learning rate is not known")
    if trace.rising and not trace.whole:
        return lr_too_low.not_judged(FIRST_RATES_ALONE)
    if trace.rising:
        return lr_too_low.clear("the learning rate is still rising")
    reached = course_of(record)
    behind = -reached.below_unigram if reached is not None and reached.finite else math.nan
    if trace.decayed and not behind > OVER_FREQUENCIES:
        return lr_too_low.clear(
            "the learning rate is at the end of a decay, so its schedule is judged instead"
        )
    rate = trace.peak if trace.decayed else trace.series.last
    ratio = record.get("update.ratio")
    ratio_seen = ratio.tail(max(3, len(ratio) // 2)).median() if ratio is not None else math.nan
    result = record.exam(EXAM)
    if result is None:
        return worth_a_trial(record, ratio_seen, reached)
    trial = Experiment.of(result)
    if trial is None:
        moved = ratio_seen * record.num_steps
        return nowhere(record, rate, moved) or lr_too_low.not_judged(result.reason, wants=EXAM)
    if (
        trace.decayed
        and trace.highest(trial.start, trial.start + trial.steps) < DECAYED * trace.peak
    ):
        return lr_too_low.clear(
            "the learning rate is at the end of a decay, so its schedule is judged instead"
        )
    if not trial.faithful or trial.control_blown:
        return lr_too_low.not_judged("the repeated steps do not follow the run")
    if (record.fact("optimizer.coverage") or {}).get("trained_before"):
        return lr_too_low.not_judged("the run starts from pretrained weights")
    return by_trial(record, trial, rate, ratio_seen, reached)


def worth_a_trial(record: Record, ratio_seen: float, reached: Course | None) -> Outcome:
    """Before anything was tried: only a run that does not learn, by steps that are short, is worth it."""
    if ratio_seen >= LONG_ENOUGH:
        return lr_too_low.clear(f"each step changes the weights by {ratio_seen:.1g} of their norm")
    if reached is not None and reached.learned:
        return lr_too_low.clear(reached.how_far)
    if (record.fact("optimizer.coverage") or {}).get("trained_before"):
        return lr_too_low.not_judged("the run starts from pretrained weights")
    if reached is None or not reached.finite:
        return lr_too_low.not_judged("the loss is not finite")
    return lr_too_low.not_judged("the run was not repeated with a higher learning rate", wants=EXAM)


def nowhere(record: Record, rate: float, moved: float) -> Finding | None:
    """Weights that have hardly moved, and a loss that has not moved at all."""
    if not at_a_guess(record) or not moved < MOVED_NOWHERE:
        return None
    return lr_too_low.finding(
        evidence(
            "distance the weights moved in all steps, relative to their norm", moved, "above 0.1"
        ),
        evidence("learning rate", rate),
        grade="statistic",
        summary=(
            f"The learning rate ({rate:.3g}) changes the weights by only {moved:.1g} of "
            f"their norm in all {record.num_steps} steps, and the loss is still that of a "
            "blind guess"
        ),
        since_step=0,
    )


def by_trial(
    record: Record, trial: Experiment, rate: float, ratio_seen: float, reached: Course | None
) -> Outcome:
    """Does the same run at a higher rate learn faster, by how much, and is that the rate's doing?"""
    behind = -reached.below_unigram if reached is not None and reached.finite else math.nan
    faster = [name for name in trial.variants if name.startswith("lr*") and trial.wins(name)]
    if not faster:
        return lr_too_low.clear("a higher learning rate does not learn faster")
    best = max(faster, key=trial.gain)
    own = max(trial.before - trial.control, trial.noise)
    gains = trial.gain(best) / own
    change = trial.extra.get("kl_per_update")
    nothing = isinstance(change, float) and change < KL_NOTHING
    if not nothing and ratio_seen >= LONG_ENOUGH:
        return lr_too_low.clear(f"each step changes the weights by {ratio_seen:.1g} of their norm")
    crawls = (
        ratio_seen < LONG_ENOUGH
        and reached is not None
        and behind > OVER_FREQUENCIES
        and trial.gain(best) > WAY_TO_FREQUENCIES * (trial.before - reached.last + behind)
    )
    if crawls and not nothing and record.num_steps < STEPS_FOR_FREQUENCIES:
        return lr_too_low.not_judged(f"{record.num_steps} steps are too few to call the run slow")
    if gains < (GAIN_RATIO if nothing or crawls else GAIN_RATIO_ALONE):
        return lr_too_low.clear(
            f"a higher learning rate lowers the loss only {gains:.1f} times as far"
        )
    items = [
        trial.evidence(best, f"the learning rate times {best.removeprefix('lr*')}"),
        evidence("gain at the higher learning rate relative to the run's own", gains, 1.0),
    ]
    if crawls:
        items.append(evidence("loss above that of token frequencies alone, nats", behind, 0.0))
    if isinstance(change, float):
        items.append(
            evidence("KL divergence of one update, nats per position", change, step=trial.start)
        )
    return lr_too_low.finding(
        *items,
        grade="experiment" if nothing or crawls else "statistic",
        summary=(
            f"The learning rate ({rate:.3g}) is far too low: {best.removeprefix('lr*')} "
            f"times as much lowers the loss {gains:.0f} times as far in {trial.steps} steps"
        ),
        since_step=0,
    )


def at_a_guess(record: Record) -> bool:
    """The loss never left the level of equal chances for every class."""
    loss = record.get("loss.token")
    classes = (record.fact("loss.site") or {}).get("classes") or 0
    if loss is None or len(loss.finite()) < GUESSES or classes < 2:
        return False
    late = loss.finite().tail(GUESSES).median()
    return bool(late >= math.log(classes) - AT_GUESS)
