from __future__ import annotations

from traindoctor.checks.base import Outcome, check, evidence
from traindoctor.checks.optimizer.base import Experiment, progress
from traindoctor.record import Record

EXAM = "experiment_rate_down"


@check(
    code="OPT001",
    slug="lr-too-high",
    title="The learning rate is too high: the same run with a lower rate learns",
    needs=["optim.lr"],
    min_steps=8,
)
def lr_too_high(record: Record) -> Outcome | None:
    """
    ## What it does
    Replays the first steps of the run from its own initial weights and batches, once as it was and once with a
    third and a tenth of the learning rate, and compares the loss on the batches that come after them. Replays
    whose batches come in another order give the noise.
    ## Why it matters
    Steps that are too long throw the weights out of the region where the gradient means anything: the loss
    explodes, or drops to the level of token frequencies and stays there.
    ## How to fix
    Divide the learning rate by 3 to 10; with Adam on a transformer from scratch, 1e-4 to 3e-3 is usual. Add a
    warm-up and clip the gradient norm at 1.
    ## When it stays silent
    A lower rate that wins by annealing alone (a few hundredths of a nat), and runs that learn well: there the
    experiment is not asked for. A line search along one update does not decide this: its best length is 1 in
    runs that blow up and 0.1 in healthy ones.
    """
    reached = progress(record)
    result = record.exam(EXAM)
    if result is None:
        if reached is not None and reached.learned_well:
            return lr_too_high.clear("the loss fell well under the level of token frequencies")
        return lr_too_high.not_judged("the same run at a lower rate has not been tried", wants=EXAM)
    trial = Experiment.of(result)
    if trial is None:
        if reached is not None and not (reached.broke or reached.rebounded):
            return lr_too_high.clear("the loss neither rises nor rebounds")
        return lr_too_high.not_judged(f"the exam {EXAM} was not possible: {result.reason}")
    if not trial.faithful:
        return lr_too_high.not_judged(f"the replay misses the run's losses by {trial.fidelity:.2g}")
    # Where the run and a third of its rate both blow up, the tenth alone has to learn.
    third_blows = trial.control_blown and trial.blown.get("lr/3", False)
    lower_helps = trial.wins("lr/3") or trial.leans("lr/3") or third_blows
    if not (trial.wins("lr/10") and lower_helps):
        return lr_too_high.clear(f"{EXAM}: a lower rate does not learn better")
    if trial.warmup_cures:
        return lr_too_high.clear(f"{EXAM}: with a warm-up the same rate learns as well")
    rate = record["optim.lr"]
    tenth = third_blows or trial.variants["lr/10"] < trial.variants["lr/3"]
    share, name = ("a tenth", "lr/10") if tenth else ("a third", "lr/3")
    reached_loss = trial.variants[name]
    return lr_too_high.finding(
        *([] if third_blows else [trial.evidence("lr/3", "a third of the rate")]),
        trial.evidence("lr/10", "a tenth of the rate"),
        evidence("learning rate", float(rate.values.max())),
        grade="experiment",
        summary=f"The learning rate ({rate.values.max():.3g}) is too high: from the same start, on the same "
        f"batches, {share} of it reaches {reached_loss:.3f} where the run "
        f"{'breaks' if trial.control_blown else f'is at {trial.control:.3f}'}",
        since_step=trial.start,
    )
