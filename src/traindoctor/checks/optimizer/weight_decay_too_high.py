from dataclasses import dataclass

from traindoctor.checks.base import (
    NotJudged,
    Outcome,
    check,
    done_exam,
    evidence,
    without_optimizer,
    worth_asking,
)
from traindoctor.checks.consequences import TOO_SHORT
from traindoctor.checks.course import course_of
from traindoctor.checks.experiments import Experiment
from traindoctor.checks.optimizer.base import groups_of
from traindoctor.record import Record

EXAMS = ("experiment_decay", "experiment_decay_start")
# Decay that pulls with less than this share of the gradient's push cannot rule the step. In balance, late in
# a healthy run, the two are of one size: so above it the experiment decides.
RATIO = 0.3


@check(
    code="OPT009",
    slug="weight-decay-too-high",
    title="Weight decay pulls harder than the gradient: without it the run learns",
    # AdamW's decay is multiplied by the rate: a lower rate wins wherever the decay is too high.
    explains=("lr-too-high", "gradients-vanishing", "attention-blind", *TOO_SHORT),
)
def weight_decay_too_high(record: Record) -> Outcome:
    """
    ## What it does
    Measures the decay term beside the term it stands with in the optimizer's own rule (the gradient for Adam and
    SGD, the normalised step for AdamW), and replays steps of the run with the decay set to 0. Weights that the
    script itself multiplies by a number below 1 between two steps are decay by hand, and are treated the same.
    ## Why it matters
    The weights are pulled to zero as fast as they learn. In Adam (not AdamW) the decay joins the gradient and
    rules the step wherever gradients are small.
    ## How to fix
    Use AdamW with 0.01 to 0.1, without decay on norms, biases and embeddings; with Adam at most 1e-4.
    ## When it stays silent
    Decay that is as strong as the gradient late in a run, as long as the run is no worse for it.
    """
    if not record.fact("optimizer.groups"):
        return without_optimizer(weight_decay_too_high, record)
    setting, hand = by_setting(record), by_hand(record)
    pulls = [pull for pull in (setting, hand) if isinstance(pull, Pull)]
    unknown = next((pull for pull in (setting, hand) if isinstance(pull, NotJudged)), None)
    pull = max(pulls, key=lambda one: one.ratio, default=None)
    if unknown is not None and (pull is None or pull.ratio < RATIO):
        return unknown
    if pull is None:
        return weight_decay_too_high.clear("there is no weight decay")
    if pull.ratio < RATIO:
        return weight_decay_too_high.clear(
            f"the decay term is at most {pull.ratio:.2g} times the gradient term"
        )
    went = course_of(record)
    if went is not None and went.solved:
        return weight_decay_too_high.clear(
            f"with this decay the loss fell from {went.first:.3g} to {went.last:.3g}"
        )
    for name in EXAMS:
        result = record.exam(name)
        if result is None:
            return weight_decay_too_high.not_judged(
                "the run was not repeated without weight decay", wants=name
            )
        trial = Experiment.of(result)
        if trial is None or not trial.faithful or not trial.wins("no decay"):
            continue
        return weight_decay_too_high.finding(
            trial.evidence("no decay", "no weight decay"),
            evidence("decay term relative to the gradient term", pull.ratio),
            evidence("weight decay", pull.size),
            grade="experiment",
            summary=(
                f"{pull.words} outweighs the gradient {pull.ratio:.2g} times over: without it "
                f"the loss is {trial.variants['no decay']:.3f} instead of {trial.control:.3f} "
                f"after {trial.steps} steps"
            ),
            since_step=trial.start,
        )
    if not any(done_exam(record, name) for name in EXAMS):
        return weight_decay_too_high.not_judged(
            "the run could not be repeated without weight decay"
        )
    return weight_decay_too_high.clear("without weight decay the run is no better")


@dataclass(frozen=True)
class Pull:
    """How hard the weights are pulled to zero, and by whom."""

    words: str
    size: float
    ratio: float
    """Over the term it stands beside."""


def by_setting(record: Record) -> Pull | NotJudged | None:
    """The optimizer's own weight decay; None where it has none."""
    decays = [g for g in groups_of(record) if g.get("weight_decay")]
    if not decays:
        # Every optimizer of torch that can decay has the setting, be it 0. Another one may call it anything.
        if any("weight_decay" not in group for group in groups_of(record)):
            return weight_decay_too_high.not_judged(
                "the optimizer has no `weight_decay` setting; what its own rule does is not known"
            )
        return None
    ratio = record.get("decay.ratio")
    if ratio is None or not len(ratio):
        return weight_decay_too_high.not_judged("the decay term has not been measured")
    strongest = float(ratio.values.max())
    largest = max(decays, key=lambda g: g["weight_decay"])
    size = float(largest["weight_decay"])
    return Pull(f"Weight decay {size:g} in {largest['class']}", size, strongest)


def by_hand(record: Record) -> Pull | NotJudged | None:
    """What the script takes off its weights between two steps."""
    if any(group["by_hand"] for group in groups_of(record)):
        return None  # what its own update takes off is a setting of it
    result = done_exam(record, "outside_changes")
    if worth_asking(record, "outside_changes"):
        return weight_decay_too_high.not_judged(
            "it is not known whether the script decays its weights by hand", wants="outside_changes"
        )
    if result is None or not result.values["tensors"]:
        return None
    lost = 1 - float(result.values["factor"])
    words = f"Hand-written decay (each step takes {lost:.2g} of the weights)"
    return Pull(words, lost, float(result.values["ratio"]))
