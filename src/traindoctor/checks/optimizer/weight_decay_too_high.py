from __future__ import annotations

from traindoctor.checks.base import Outcome, check, evidence
from traindoctor.checks.optimizer.base import Experiment, groups_of
from traindoctor.record import Record

EXAMS = ("experiment_decay", "experiment_decay_start")
# Decay that pulls with less than this share of the gradient's push cannot rule the step. In balance, late in
# a healthy run, the two are of one size: so above it the experiment decides.
RATIO = 0.3


@check(
    code="OPT009",
    slug="weight-decay-too-high",
    title="Weight decay pulls harder than the gradient: without it the run learns",
)
def weight_decay_too_high(record: Record) -> Outcome | None:
    """
    ## What it does
    Measures the decay term beside the term it stands with in the optimizer's own rule (the gradient for Adam and
    SGD, the normalised step for AdamW), and replays steps of the run with the decay set to 0.
    ## Why it matters
    The weights are pulled to zero as fast as they learn. In Adam (not AdamW) the decay joins the gradient and
    rules the step wherever gradients are small.
    ## How to fix
    Use AdamW with 0.01 to 0.1, without decay on norms, biases and embeddings; with Adam at most 1e-4.
    ## When it stays silent
    Decay that is as strong as the gradient late in a run, as long as the run is no worse for it.
    """
    decays = [g for g in groups_of(record) if g.get("weight_decay")]
    ratio = record.get("decay.ratio")
    if not record.fact("optimizer.groups"):
        return weight_decay_too_high.not_judged("no optimizer of torch has stepped")
    if not decays:
        return weight_decay_too_high.clear("the optimizer has no weight decay")
    if ratio is None or not len(ratio):
        return weight_decay_too_high.not_judged("the decay term has not been measured")
    strongest = float(ratio.values.max())
    if strongest < RATIO:
        return weight_decay_too_high.clear(
            f"decay is {strongest:.2g} of the gradient's term at most"
        )
    largest = max(decays, key=lambda g: g["weight_decay"])
    for name in EXAMS:
        result = record.exam(name)
        if result is None:
            return weight_decay_too_high.not_judged(
                "the run without decay has not been tried", wants=name
            )
        trial = Experiment.of(result)
        if trial is None or not trial.faithful or not trial.wins("no decay"):
            continue
        return weight_decay_too_high.finding(
            trial.evidence("no decay", "no weight decay"),
            evidence("decay term over the term beside it", strongest),
            evidence("weight decay", float(largest["weight_decay"])),
            grade="experiment",
            summary=f"Weight decay {largest['weight_decay']:g} in {largest['class']} rules the step "
            f"({strongest:.2g} times the gradient's term): without it the loss is "
            f"{trial.variants['no decay']:.3f} instead of {trial.control:.3f} after {trial.steps} steps",
            since_step=trial.start,
        )
    if not any((r := record.exam(name)) is not None and r.done for name in EXAMS):
        return weight_decay_too_high.not_judged("the run without decay could not be tried")
    return weight_decay_too_high.clear("without decay the run is no better")
