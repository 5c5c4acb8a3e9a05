from traindoctor.checks import laws
from traindoctor.checks.base import Outcome, check, evidence, wanted_exam
from traindoctor.record import Record

# Counted targets in constant tails: 0.68 in all rows where padding counts; healthy text at most 0.08 in 0.21.
SHARE, ROWS = 0.15, 0.3
# Padding is learned first: its loss over that of the other targets.
EASY = 0.5


@check(
    code="DAT004",
    slug="padding-in-loss",
    title="Padding positions count as targets",
    wants=["padding"],
    law=laws.PADDING,
    explains=("greedy-repetition", "undertrained"),
    signs=("loss-too-good",),
)
def padding_in_loss(record: Record) -> Outcome:
    """
    ## What it does
    Finds the constant tail (or head) of each row of targets, of a token that the rows going in end with as well and
    that nothing follows there, and asks the loss whether those positions count: the derivative of the loss by their scores is
    not zero.
    ## Why it matters
    Most of the loss is then about predicting padding: the number falls quickly, the model hardly learns text.
    ## How to fix
    Set the targets of padding to -100 (`labels[attention_mask == 0] = -100`), or pass `ignore_index=pad_id`.
    ## When it stays silent
    Padding that is masked by ignore_index, by weights or by selection does not count, however it is done. A class or a
    digit that is frequent is no padding: other tokens follow it.
    Tails of one length in all rows belong to the task, unless the model itself treats their token as padding: its table
    says so, or it masks the token at the ends of another text.
    """
    result = wanted_exam(record, "padding")
    for pair in result.values["pairs"]:
        if pair["counted"] < SHARE or pair["rows"] < ROWS:
            continue
        if not pair.get("lengths_vary", True) and not pair.get("known_as_padding", False):
            continue
        easy = (pair["nll_padding"] or 0.0) < EASY * (pair["nll_elsewhere"] or 0.0)
        return padding_in_loss.finding(
            evidence(
                "share of the targets in the loss that are padding",
                pair["counted"],
                0.0,
                step=result.step,
            ),
            evidence("loss on padding", pair["nll_padding"], step=result.step),
            evidence("loss elsewhere", pair["nll_elsewhere"], step=result.step),
            status=None if easy else "likely",
            line=pair["line"],
            since_step=0,
            summary=(
                f"{pair['counted']:.0%} of the targets in the loss are padding (token "
                f"{pair['token']})"
            ),
            grade="exact",
        )
    return padding_in_loss.clear("no padding position counts as a target")
