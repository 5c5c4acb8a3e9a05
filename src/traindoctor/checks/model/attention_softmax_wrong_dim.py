from traindoctor.checks import laws
from traindoctor.checks.base import Outcome, check, evidence, wanted_exam
from traindoctor.checks.consequences import NOT_LEARNING
from traindoctor.record import Record

# Sound attention: 2e-7 (float32); a wrong axis: 0.06 with flat scores, 0.6 and more with others.
OFF = 1e-3
# Weights in half precision sum to 1 within a rounding each.
ROUNDINGS = 4


@check(
    code="MOD004",
    slug="attention-softmax-wrong-dim",
    title="Attention weights are normalised over the wrong axis",
    wants=["softmax_axis"],
    law=laws.MEAN,
    explains=("attention-blind", "attention-scale-wrong", "causal-mask-leak", *NOT_LEARNING),
    urgent=True,
)
def attention_softmax_wrong_dim(record: Record) -> Outcome:
    """
    ## What it does
    Follows each softmax to the product its weights enter and sums them over the axis that the product sums
    over: the keys. The sum is 1, whatever dropout does later; what a sink or a null key took of the same softmax
    is counted in.
    ## Why it matters
    Weights normalised over queries, heads or the batch are no average of values: examples mix, sizes drift with
    the length, and the model learns badly or leaks.
    ## How to fix
    `softmax(dim=-1)` on scores of shape (..., queries, keys).
    ## When it stays silent
    torch's own attention functions, weights that are normalised once more after the softmax, and masks that are
    laid on after it (they show as a leak).
    """
    result = wanted_exam(record, "softmax_axis")
    rows = result.values["attentions"]
    wrong = [
        a for a in rows if min(a["off"], a["off_at_product"] or 0.0) > OFF + ROUNDINGS * a["noise"]
    ]
    if not wrong:
        return attention_softmax_wrong_dim.clear("attention weights sum to 1 over the keys")
    worst = max(wrong, key=lambda a: a["off"])
    return attention_softmax_wrong_dim.finding(
        evidence(
            "median distance from 1 of the weights' sum over the keys",
            worst["off"],
            0.0,
            noise=worst["noise"],
            step=result.step,
        ),
        evidence("attentions concerned", len(wrong), 0),
        where=worst["module"] or None,
        line=worst["line"],
        since_step=0,
        summary=f"Attention weights are normalised over axis {worst['dim']}, not over the keys",
        grade="exact",
    )
