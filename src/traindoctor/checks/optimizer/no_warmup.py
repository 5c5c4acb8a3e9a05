from traindoctor.checks.base import Outcome, check
from traindoctor.checks.consequences import NOT_LEARNING, TOO_LONG
from traindoctor.checks.course import NO_MEASURE, course_of, two_signs
from traindoctor.checks.experiments import Experiment
from traindoctor.checks.optimizer.base import is_log, says_nothing, warms_up
from traindoctor.record import Record

EXAM = "experiment_rate_down"
LONG = "experiment_rate_long"
"""Asked for by lr-too-high, where the run stops on the level of frequencies."""


@check(
    code="OPT002",
    slug="no-warmup",
    title=(
        "Starting at the full learning rate breaks the run; with a warm-up the same rate is fine"
    ),
    needs=["optim.lr"],
    min_steps=8,
    explains=("lr-too-high", "nan-from-op", *TOO_LONG, *NOT_LEARNING),
    signs=("always-clipped",),
)
def no_warmup(record: Record) -> Outcome:
    """
    ## What it does
    Replays the first steps with the rate rising over them to the same height, beside the run as it was.
    ## Why it matters
    Adam's second moment knows nothing at first, so the first steps are as long as the rate allows, in
    whatever direction the first batches point.
    ## How to fix
    Let the rate rise linearly over the first few hundred steps (1 to 5 % of the run).
    ## When it stays silent
    If warm-up does not help from the same start on the same batches, or the rate already rises.
    """
    if two_signs(record):
        return no_warmup.not_judged(NO_MEASURE)
    if warms_up(record):
        return no_warmup.clear("the learning rate rises from the first step on")
    if is_log(record):
        return no_warmup.not_judged("a log cannot be repeated with another learning rate")
    reached = course_of(record)
    result = record.exam(EXAM)
    trial = Experiment.of(result)
    if trial is None:
        if reached is not None and (reached.learned or (result and reached.fell)):
            return no_warmup.clear("the loss falls from the start")
        if result is not None:
            return no_warmup.not_judged(result.reason, wants=EXAM)
        return no_warmup.not_judged("a warm-up was not tried", wants=EXAM)
    if (reason := says_nothing(record, trial)) is not None:
        return no_warmup.not_judged(reason)
    longer = Experiment.of(record.exam(LONG))
    if longer is not None and reached is not None and longer.speaks_for(reached, "warmup"):
        trial = longer
    if "warmup" not in trial.variants and (trial.wins("lr/3") or trial.wins("lr/10")):
        return no_warmup.not_judged("there was no time to try a warm-up")
    if not trial.wins("warmup"):
        return no_warmup.clear("a warm-up does not help")
    if not (trial.wins("lr/3") or trial.wins("lr/10")):
        return no_warmup.clear(
            "a lower learning rate does not help, so the first steps are not too long"
        )
    if reached is not None and reached.solved:
        return no_warmup.clear("the loss is already next to zero")
    if trial.outdone(reached, ["warmup"]):
        return no_warmup.clear("the run itself got as far")
    if not trial.warmup_cures:
        return no_warmup.clear("a lower learning rate helps much more than a warm-up")
    return no_warmup.finding(
        trial.evidence("warmup", "a warm-up to the same learning rate"),
        grade="experiment",
        summary=(
            "Starting at the full learning rate breaks the run: with a warm-up to the same "
            f"rate the loss reaches {trial.variants['warmup']:.3f}"
        ),
        since_step=trial.start,
    )
