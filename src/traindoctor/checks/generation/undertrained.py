from __future__ import annotations

import numpy as np

from traindoctor.checks.base import Outcome, check, evidence
from traindoctor.record import Record

# A model whose loss is not below a count of token pairs writes what such a count would write.
MARGIN = 0.05
STEPS = 20
# Still falling by this much over the last half, relative: more steps are what it needs.
FALLING = 0.02


@check(
    code="GEN002",
    slug="undertrained",
    title="The text is that of a model which has not learned yet",
    needs=["loss.token", "ladder.bigram"],
    min_steps=STEPS,
)
def undertrained(record: Record) -> Outcome | None:
    """
    ## What it does
    Compares the loss with that of counting pairs of tokens in the same data, and looks whether it still falls.
    ## Why it matters
    Above that level the model writes word salad whatever the decoding settings are.
    ## How to fix
    Train on: more `--steps`, or resume with `--resume`. A higher learning rate helps only where the loss falls
    in a straight line.
    ## When it stays silent
    Runs that write no text samples, and losses that do not fall any more: then something else is wrong.
    """
    if not record.fact("text.samples"):
        return undertrained.not_judged("the run writes no text")
    loss, rung = record["loss.token"].finite(), record["ladder.bigram"].finite()
    if len(loss) < STEPS or not len(rung):
        return undertrained.not_judged("the loss is not finite")
    last, level = float(np.median(loss.values[-STEPS:])), float(np.median(rung.values[-STEPS:]))
    if last < level - MARGIN:
        return undertrained.clear(
            f"the loss {last:.2f} is below that of counting pairs, {level:.2f}"
        )
    middle = float(np.median(loss.values[len(loss) // 2 :][:STEPS]))
    if middle - last < FALLING * abs(middle):
        return undertrained.clear("the loss does not fall any more: more steps would not help")
    return undertrained.finding(
        evidence("loss per token", last, level, noise=MARGIN),
        evidence("loss half-way", middle),
        grade="curve",
    )
