from __future__ import annotations

from traindoctor.checks.base import Outcome, check, evidence
from traindoctor.record import Record

# f(permuted x) - permuted f(x), over the spread of scores: 7e-7 without positions, 0.08 and more with them.
ROUNDING = 1e-5
# Position tables that start at zero tell nothing at first.
SETTLED = 10
# A model that fits its data this well needs no order.
FITS = 0.3


@check(
    code="MOD005",
    slug="position-missing",
    title="The order of the tokens cannot reach the output",
    wants=["positions"],
)
def position_missing(record: Record) -> Outcome | None:
    """
    ## What it does
    Permutes the tokens of each row at the embedding call and compares with the permuted outputs. Without any
    position signal they are the same to rounding.
    ## Why it matters
    Attention alone sees a bag of tokens: whatever depends on their order cannot be learned.
    ## How to fix
    Add position embeddings (learned, sinusoidal, rotary) to the tokens, with one entry per PLACE: with
    `batch_first=True` index them by dimension 1.
    ## When it stays silent
    Next-token models: the causal mask is a position signal in itself. The first steps, where a position table
    may still be zero. Models that fit their data without order.
    """
    result = record.exam("positions")
    assert result is not None
    pair = min(result.values["pairs"], key=lambda p: p["gap"])
    if pair["gap"] > ROUNDING:
        return position_missing.clear(
            f"positions: outputs change by {pair['gap']:.2g} with the order"
        )
    if result.step < SETTLED:
        return position_missing.not_judged(
            "order tells nothing yet; asked again later", wants="positions"
        )
    if fits(record):
        return position_missing.clear(
            "order cannot reach the output, and the task is learned without it"
        )
    return position_missing.finding(
        evidence(
            "change of outputs when tokens are permuted",
            pair["gap"],
            "0.08 and more",
            step=result.step,
        ),
        line=pair["line"],
        since_step=0,
        # A set of tokens may be all that a classifier is meant to see.
        status="possible" if pair["pooled"] else None,
    )


def fits(record: Record) -> bool:
    loss, level = record.get("loss.token"), record.get("ladder.unigram")
    if loss is None or level is None or len(loss) < 10 or not len(level):
        return False
    return loss.tail(10).median() < FITS * level.tail(10).median()
