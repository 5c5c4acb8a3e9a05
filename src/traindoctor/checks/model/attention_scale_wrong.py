from __future__ import annotations

import math

from traindoctor.checks.base import Outcome, check, evidence
from traindoctor.record import Record

# Scores over sqrt(d) have a standard deviation of 0.02 to 3.6 at the start (20 healthy runs, biases included).
# Both must hold: the factor is off by construction, and the scores are out of range because of it.
SHARP_FACTOR, SHARP_STD = 3.0, 3.0
# Leaving the factor out is a choice (T5: 1); multiplying by more is none, unless queries or keys are normalised
# to one length (then the factor is a temperature). Lengths of projections vary by 0.1 to 0.5 of their mean.
LEFT_OUT, NORMALISED = 1.5, 0.01
# Dividing by d instead of sqrt(d) is a known choice (muP): flatter than that by half is none.
FLAT_FACTOR, FLAT_STD = 0.5, 0.02


@check(
    code="MOD003",
    slug="attention-scale-wrong",
    title="Attention scores are far too sharp or too flat by construction",
    wants=["attention_scores"],
)
def attention_scale_wrong(record: Record) -> Outcome | None:
    """
    ## What it does
    Reads from the tape by what number queries times keys are multiplied before the softmax, compares it with
    1/sqrt(d), and measures the spread of the scores at the first step. A factor above 1 on queries and keys
    that are not normalised is wrong whatever the spread: the scores grow with the weights.
    ## Why it matters
    Scores that are too large make each softmax choose one key for good, and its gradient vanishes; scores that
    are too small make every key count the same.
    ## How to fix
    Divide the scores by `math.sqrt(head_dim)`, with the width of one head, once; or use
    `F.scaled_dot_product_attention`, which does.
    ## When it stays silent
    Models that leave the factor out and start with smaller weights (T5), divide by d (muP), normalise queries
    and keys or learn a temperature: their scores are in range, or the factor is not a number.
    """
    result = record.exam("attention_scores")
    assert result is not None
    known = [a for a in result.values["attentions"] if a["scale"] is not None]
    if not known:
        return attention_scale_wrong.clear(
            "scores are scaled by something learned, not by a number"
        )
    known.sort(key=lambda a: a["scale"])
    middle = known[len(known) // 2]
    scale, std = middle["scale"], middle["std"]
    flat = FLAT_FACTOR / math.sqrt(middle["length"])
    multiplied = middle["factor"] >= LEFT_OUT and (middle.get("spread") or 0.0) > NORMALISED
    sharp = scale >= SHARP_FACTOR and (std >= SHARP_STD or multiplied)
    if not sharp and not (scale <= flat and std <= FLAT_STD):
        return attention_scale_wrong.clear(
            f"scores are multiplied by {scale:.3g}/sqrt(d), spread {std:.2g}"
        )
    return attention_scale_wrong.finding(
        evidence("factor on q.k, times sqrt(d)", scale, 1.0, step=result.values["step"]),
        evidence("standard deviation of scores", std, "0.02 to 3.6", step=result.values["step"]),
        evidence("entropy of attention over ln(keys)", middle["entropy"]),
        grade="statistic",
        where=middle["module"] or None,
        line=middle["line"],
        since_step=0,
        summary=f"Attention scores are multiplied by {middle['factor']:.3g}, {scale:.3g} times 1/sqrt(d): far too "
        + ("sharp" if sharp else "flat"),
    )
