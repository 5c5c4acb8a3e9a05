import math

import numpy as np
from numpy.typing import NDArray

from traindoctor.checks.base import Outcome, check, evidence, without_text
from traindoctor.record import Record

# A model whose loss is not below that of counting token pairs, over the same batches, writes what such a count would.
MARGIN = 0.05
STEPS = 20
# Counts are made at some steps only, the first with nothing counted; the more were made, the better they predict.
COUNTED, LATEST = 3, 8
# Still falling from the third quarter to the last, by this share and by so many times its noise.
FALLING = 0.01
SIGMAS = 3.0


@check(
    code="GEN002",
    slug="undertrained",
    title="The generated text is poor because the model has not trained long enough",
    needs=["loss.token"],
    min_steps=STEPS,
    undecided="only a longer run would show it",
    explains=("greedy-repetition",),
    outcome_only=True,
)
def undertrained(record: Record) -> Outcome:
    """
    ## What it does
    Compares the loss with that of counting pairs of tokens in the same data, and looks whether it still falls.
    ## Why it matters
    Above that level the model writes word salad whatever the decoding settings are.
    ## How to fix
    Train longer: more steps, or go on from the last checkpoint. A higher learning rate helps only where the loss
    falls in a straight line.
    ## When it stays silent
    Runs that write no text samples, and losses that do not fall any more: then something else is wrong.
    """
    if not record.fact("text.samples"):
        return without_text(undertrained, record)
    loss, rung = record["loss.token"].finite(), record.get("ladder.bigram")
    if len(loss) < STEPS:
        return undertrained.not_judged("the loss is not finite")
    if rung is None or len(rung.finite()) < COUNTED:
        return undertrained.not_judged("too few token pairs were counted")
    last = float(np.median(loss.values[-STEPS:]))
    level = float(np.median(rung.finite().values[1:][-LATEST:]))
    if last < level - MARGIN:
        return undertrained.clear(
            f"the loss {last:.2f} is below that of a bigram count model, {level:.2f}"
        )
    before, after = np.array_split(loss.values[len(loss) // 2 :], 2)
    fall = float(np.median(before) - np.median(after))
    noise = math.hypot(noise_of_median(before), noise_of_median(after))
    if fall < max(FALLING * abs(last), SIGMAS * noise):
        return undertrained.clear("the loss has stopped falling, so more steps would not help")
    return undertrained.finding(
        evidence("loss per token", last, level, noise=MARGIN),
        evidence("drop of the loss over the last quarter of the run", fall, noise=noise),
        grade="statistic" if last > level + MARGIN else "curve",
    )


def noise_of_median(values: NDArray[np.float64]) -> float:
    """Its standard error, from the median distance to it (1.25 and 1.48: normal noise)."""
    spread = 1.48 * float(np.median(np.abs(values - np.median(values))))
    return 1.25 * spread / math.sqrt(len(values))
