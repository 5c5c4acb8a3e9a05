import math
from collections.abc import Mapping
from typing import Any

from traindoctor.checks import laws
from traindoctor.checks.base import Outcome, check, evidence
from traindoctor.checks.consequences import NOT_LEARNING
from traindoctor.checks.loss.base import broken_by, calm, located, place
from traindoctor.record import ExamResult, Record

EXPONENTIALS = frozenset({"exp", "exp_", "expm1", "exp2", "cosh", "sinh"})
LOGARITHMS = frozenset({"log", "log_", "log2", "log10", "logit"})
# A logarithm of one of these's result is part of a softmax or a cross-entropy.
PROBABILITIES = frozenset({"softmax", "_softmax", "exp", "exp_", "sigmoid"})


def of_a_softmax(values: Mapping[str, Any]) -> bool:
    """The op is the exp or the log of a softmax, a log-sum-exp or a loss by hand."""
    if values.get("dtype") == "float16":
        return False  # there the range of the dtype is the cause
    if values["op"] in EXPONENTIALS or adds_exponentials(values):
        return True
    return values["op"] in LOGARITHMS and bool(PROBABILITIES & set(values.get("chain") or ()))


def adds_exponentials(values: Mapping[str, Any]) -> bool:
    """What overflows is no exp itself, but what is made of its results: their sum."""
    return bool(EXPONENTIALS & set((values.get("chain") or ())[:1]))


@check(
    code="LOS005",
    slug="unstable-softmax",
    title="A hand-written softmax or log-sum-exp overflows",
    law=laws.MAKER,
    explains=("nan-from-op", "fp16-overflow", "gradients-exploding", *NOT_LEARNING),
    signs=("always-clipped",),
)
def unstable_softmax(record: Record) -> Outcome:
    """
    ## What it does
    When loss or gradient stop being finite, replays that very step op by op and finds the first op that makes an
    infinity or a NaN from finite input. An `exp`, a sum of such (or the `log` of a probability) with calm weights is this
    cause.
    ## Why it matters
    exp(89) is infinite in float32, exp(12) in float16: one large score and the whole batch is NaN.
    ## How to fix
    Use `torch.log_softmax`, `torch.logsumexp` or `F.cross_entropy`; or subtract the row's maximum before `exp`.
    ## When it stays silent
    Scores that grew because the weights blew up before: then the learning rate or the gradient is the cause.
    """
    result = broken_by(unstable_softmax, record)
    if not isinstance(result, ExamResult):
        return result
    values = result.values
    if not of_a_softmax(values):
        return unstable_softmax.clear(f"the first non-finite value comes from {values['op']}")
    added = adds_exponentials(values)
    # Exponentials are large where their exponents are not.
    if not calm(record, {**values, "inputs": ()} if added else values):
        return unstable_softmax.clear("the weights had grown too large before")
    widest = (values["inputs"] or [{}])[0]
    limit = "under 3e38" if added else "under 88"
    return unstable_softmax.finding(
        evidence(f"largest input of {values['op']}", widest.get("max"), limit, step=values["step"]),
        evidence("non-finite results", values["count"], 0, step=values["step"]),
        evidence(
            "largest weight, compared with the start of the run",
            values["largest_weight"],
            values.get("largest_weight_at_start"),
            noise=1.0,
        ),
        summary=(
            f"{values['op']} at {place(values)} produces {values['count']} non-finite values "
            f"at step {values['step']} from inputs up to {widest.get('max', math.nan):.4g}, "
            "while the weights are of normal size"
        ),
        **located(values),
        grade="exact",
    )
