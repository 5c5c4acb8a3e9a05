from traindoctor.checks import laws
from traindoctor.checks.base import Finding, Outcome, check, evidence
from traindoctor.checks.consequences import TOO_SHORT
from traindoctor.record import Record

# One unlucky batch without labels may happen; a tenth of all steps is a habit.
SHARE = 0.1
# Of so few steps each one counts.
FEW = 3


@check(
    code="LOS004",
    slug="all-targets-ignored",
    title="No target is left in the loss: all are masked or equal to ignore_index",
    law=laws.WEIGHT,
    explains=(
        "nan-from-op",
        "gradient-not-flowing",
        "gradients-vanishing",
        "labels-unrelated",
        "loss-gradient-mismatch",
        *TOO_SHORT,
    ),
    urgent=True,
)
def all_targets_ignored(record: Record) -> Outcome:
    """
    ## What it does
    Counts, at the loss function, the targets that are not equal to `ignore_index` (or not masked away).
    ## Why it matters
    A mean over no target is 0/0: NaN, or a loss of 0 without gradient. The model cannot learn from it.
    ## How to fix
    Print a batch of labels after the collator. Usual reasons: the answer was cut off by truncation, labels were
    masked by the wrong side's length, the padding id equals a real token.
    ## When it stays silent
    Padding, masked language models and answer-only fine-tuning, as long as some target of a batch counts.
    """
    valid, total = record.get("target.valid"), record.get("target.total")
    if valid is None or total is None or not len(valid):
        return _from_exam(record)
    empty = [step for step, count in valid if count == 0 and (total.at(step) or 0) > 0]
    if len(empty) <= SHARE * len(valid) and not (len(valid) < FEW and empty):
        return all_targets_ignored.clear(f"{valid.median():.0f} targets per step are in the loss")
    return _finding(empty[0], len(empty), len(valid), total.median())


def _from_exam(record: Record) -> Outcome:
    result = record.exam("loss_input")
    if result is None:
        return all_targets_ignored.not_judged("no targets were seen", wants="loss_input")
    if not result.done:
        return all_targets_ignored.not_judged(
            f"the targets could not be read: {result.reason}", wants="loss_input"
        )
    sites = result.values["sites"]
    if not sites:
        return all_targets_ignored.not_judged("no classification loss was seen")
    if any(site["valid"] > 0 for site in sites):
        return all_targets_ignored.clear("targets left in the loss")
    return _finding(result.step, 1, 1, sites[0]["rows"])


def _finding(step: int, empty: int, steps: int, total: float) -> Finding:
    return all_targets_ignored.finding(
        evidence("valid targets", 0, f"some of {total:.0f}", step=step),
        evidence("steps without any", empty, 0),
        summary=f"none of the {total:.0f} targets is in the loss on {empty} of {steps} steps",
        since_step=step,
        grade="exact",
    )
