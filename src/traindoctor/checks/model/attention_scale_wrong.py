import math
from typing import Any

from traindoctor.checks import laws
from traindoctor.checks.base import Outcome, check, evidence, wanted_exam
from traindoctor.checks.consequences import NOT_LEARNING
from traindoctor.record import Record

# Scores over sqrt(d) have a standard deviation of 0.02 to 3.6 at the start (20 healthy runs, biases included).
# Both must hold: the factor is off by construction, and the scores are out of range because of it.
SHARP_FACTOR, SHARP_STD = 3.0, 3.0
# Leaving the factor out is a choice (T5: 1); multiplying by more is none, unless queries or keys are normalised
# to one length (then the factor is a temperature). Lengths of projections vary by 0.1 to 0.5 of their mean.
LEFT_OUT, NORMALISED = 1.5, 0.01
# Dividing by d instead of sqrt(d) is a known choice (muP): flatter than that by half is none.
FLAT_FACTOR, FLAT_STD = 0.5, 0.02
# Normalised queries and keys bound their scores. The weight of a key that stands alone against all others, by
# arithmetic: published temperatures (4 to 100) give 0.9 and more; under this an attention can choose nothing.
MOST_WEIGHT = 0.2


@check(
    code="MOD003",
    slug="attention-scale-wrong",
    title="Attention scores are far too sharp or too flat by construction",
    wants=["attention_scores"],
    law=laws.MEAN,
    undecided="the run was not repeated with another scale",
    explains=("gradients-vanishing", "attention-blind", *NOT_LEARNING),
    signs=("always-clipped",),
)
def attention_scale_wrong(record: Record) -> Outcome:
    """
    ## What it does
    Reads from a recorded training step by what number queries times keys are multiplied before the softmax, compares it with
    1/sqrt(d), and measures the spread of the scores at the first step. A factor above 1 on queries and keys
    that are not normalised is wrong whatever the spread: the scores grow with the weights.
    ## Why it matters
    Scores that are too large make each softmax choose one key for good, and its gradient vanishes; scores that
    are too small make every key count the same.
    ## How to fix
    Divide the scores by `math.sqrt(head_dim)`, with the width of one head, once; or use
    `F.scaled_dot_product_attention`, which does.
    ## When it stays silent
    Models that leave the factor out and start with smaller weights (T5), divide by d (muP) or learn a temperature:
    their scores are in range, or the factor is not a number. Queries and keys that are normalised make the factor a
    temperature: however sharp, it is a choice, and a flat one that is learned can grow.
    """
    result = wanted_exam(record, "attention_scores")
    known = [a for a in result.values["attentions"] if a["scale"] is not None]
    if not known:
        return attention_scale_wrong.clear("attention scores are scaled by a learned factor")
    if (flat_cosine := cannot_choose(known, result.values["step"])) is not None:
        return flat_cosine
    known = [a for a in known if a.get("reach") is None]
    if not known:
        return attention_scale_wrong.clear(
            "queries and keys are normalised, with a scale that is learned or large enough "
            "to select a key"
        )
    known.sort(key=lambda a: a["scale"])
    middle = known[len(known) // 2]
    scale, std = middle["scale"], middle["std"]
    flat = FLAT_FACTOR / math.sqrt(middle["length"])
    multiplied = middle["factor"] >= LEFT_OUT and (middle.get("spread") or 0.0) > NORMALISED
    sharp = scale >= SHARP_FACTOR and (std >= SHARP_STD or multiplied)
    if not sharp and not (scale <= flat and std <= FLAT_STD):
        return attention_scale_wrong.clear(
            f"attention scores are scaled by {scale:.3g}/sqrt(d), standard deviation {std:.2g}"
        )
    return attention_scale_wrong.finding(
        evidence("scale on q.k, relative to 1/sqrt(d)", scale, 1.0, step=result.values["step"]),
        evidence(
            "standard deviation of the attention scores",
            std,
            "0.02 to 3.6",
            step=result.values["step"],
        ),
        evidence("entropy of the attention relative to ln(keys)", middle["entropy"]),
        grade="statistic",
        where=middle["module"] or None,
        line=middle["line"],
        since_step=0,
        summary=(
            f"Attention scores are multiplied by {middle['factor']:.3g}, which is "
            f"{scale:.3g} times 1/sqrt(d): far too "
        )
        + ("sharp" if sharp else "flat"),
    )


def cannot_choose(attentions: list[dict[str, Any]], step: int) -> Outcome | None:
    """Cosine attention with a temperature that keeps every weight near 1/keys, whatever else is learned."""
    bounded = [a for a in attentions if a.get("reach") is not None and a.get("keys", 0) > 2]
    if not bounded or len(bounded) * 2 < len(attentions):
        return None
    one = max(bounded, key=lambda a: a["reach"])
    most = 1 / (1 + (one["keys"] - 1) * math.exp(-2 * one["reach"]))
    if most >= MOST_WEIGHT or one.get("learned"):
        return None
    return attention_scale_wrong.finding(
        evidence("largest attention weight a key can ever get", most, "near 1", step=step),
        evidence(
            "largest possible score of normalised queries and keys", one["reach"], "4 or more"
        ),
        evidence("keys", one["keys"]),
        where=one["module"] or None,
        line=one["line"],
        since_step=0,
        summary=(
            "Queries and keys are normalised, so their scores stay within "
            f"-{one['reach']:.3g} to {one['reach']:.3g} and no key can ever get more than "
            f"{most:.2g} of the attention"
        ),
        remedy=(
            "Multiply the cosine scores by a scale of 10 or more (or learn it) instead of "
            "dividing them."
        ),
        grade="exact",
    )
