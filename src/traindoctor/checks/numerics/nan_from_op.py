from typing import Any

from traindoctor.checks import laws
from traindoctor.checks.base import Outcome, check, evidence
from traindoctor.checks.consequences import NOT_LEARNING
from traindoctor.checks.loss.base import broken_by, calm, located, place
from traindoctor.record import ExamResult, Record

# The exponential of a softmax by hand has a cause of its own.
EXPONENTIALS = frozenset({"exp", "exp_", "expm1", "exp2"})
LOGARITHMS = frozenset({"log", "log_", "log2", "log10", "logit"})
PROBABILITIES = frozenset({"softmax", "_softmax", "exp", "exp_", "sigmoid"})

# Operation -> what keeps it finite.
GUARDS = {
    "sqrt": "Add an epsilon under the square root: `(x + 1e-8).sqrt()`. At 0 its derivative is infinite.",
    "norm": "Add an epsilon: at 0 the derivative of a norm is not finite (`(x * x).sum(-1).add(1e-8).sqrt()`).",
    "log": "Bound the argument from below: `x.clamp_min(1e-8).log()`, or work with log-probabilities.",
    "std": "Do not take the standard deviation of a single or constant value; add an epsilon to the variance.",
    **dict.fromkeys(
        ("div", "__truediv__", "true_divide", "reciprocal"),
        "Add an epsilon to the divisor, or skip the case in which it is 0.",
    ),
}


@check(
    code="NUM004",
    slug="nan-from-op",
    title="One operation makes the first NaN or infinity",
    law=laws.MAKER,
    explains=NOT_LEARNING,
)
def nan_from_op(record: Record) -> Outcome:
    """
    ## What it does
    Keeps the weights and the batch of the first step that is not finite, before the optimizer spoils them, and runs
    its ops one by one, forward or backward: the first that turns finite input into a NaN or infinity is named, with
    its line, its module and the range of its inputs.
    ## Why it matters
    One NaN spreads to every weight with the next step; the run is lost from then on.
    ## How to fix
    Guard the operation at that line: an epsilon under `sqrt` and in a divisor, a floor under `log`, no softmax over
    a row that is masked entirely, no standard deviation of constant data.
    ## When it stays silent
    Weights or loss that grew by orders of magnitude before: then the op only shows what the learning rate, the
    scale or a wrong gradient did. Infinities that a mask is made of.
    """
    result = broken_by(nan_from_op, record)
    if not isinstance(result, ExamResult):
        return result
    values = result.values
    if values.get("dtype") == "float16":
        return nan_from_op.clear("the value left the range of half precision")
    if values["op"] in EXPONENTIALS or (
        values["op"] in LOGARITHMS and PROBABILITIES & set(values.get("chain") or ())
    ):
        return nan_from_op.clear("the operation belongs to a softmax")
    if not calm(record, values):
        return nan_from_op.clear("weights or loss had grown too large before")
    return nan_from_op.finding(
        evidence(f"non-finite results of {values['op']}", values["count"], 0, step=values["step"]),
        evidence("smallest divisor or argument", _smallest(values), step=values["step"]),
        evidence(
            "largest weight, compared with the start of the run",
            values["largest_weight"],
            values.get("largest_weight_at_start"),
            noise=1.0,
        ),
        summary=(
            f"{values['op']} at {place(values)} produces the first non-finite value, in the "
            f"{values['phase']} pass of step {values['step']}, from finite input and weights "
            "of normal size"
        ),
        remedy=GUARDS.get(values["op"]),
        **located(values),
        grade="exact",
    )


def _smallest(values: dict[str, Any] | Any) -> float | None:
    sizes = [i["smallest"] for i in values["inputs"] if i["smallest"] is not None]
    return min(sizes, default=None)
