import re
from collections import defaultdict

import numpy as np

from traindoctor.checks.base import Outcome, check, evidence
from traindoctor.checks.consequences import TOO_SHORT
from traindoctor.checks.course import course_of
from traindoctor.checks.gradient.base import NO_CURE
from traindoctor.record import Record

# First block over last block, same parameter. Healthy transformers have 0.1 to 10.
RATIO = 1e-4
# ... beside a loss that does not move at all (so much of its start is left): a trunk of closed gates had 1e-3.
RATIO_FLAT, FLAT = 1e-2, 0.97
# Two blocks are no stack.
STACK = 3
NUMBER = re.compile(r"(^|\.)(\d+)(?=\.)")


@check(
    code="GRD005",
    slug="gradients-vanishing",
    title="Early layers get orders of magnitude less gradient than late ones",
    needs=["grad.rms"],
    undecided=NO_CURE,
    without_cure=True,
    explains=TOO_SHORT,
)
def gradients_vanishing(record: Record) -> Outcome:
    """
    ## What it does
    Compares the gradient of the same weight matrix, of the same shape, in the first and in the last block of a stack, in the
    median over the sampled steps.
    ## Why it matters
    Early layers stay random; the model behaves as if it had a few layers only.
    ## How to fix
    Skip connections around every block, normalisation before it, a sound initialisation, no saturating activations.
    ## When it stays silent
    Zero-initialised branches that open later, runs that learn, models without a stack of equal blocks. Named first
    only when nothing else (a missing skip path, a small initialisation) explains it.
    """
    layers = record.layers("grad.rms")
    assert layers is not None
    typical = dict(zip(layers.layers, layers.medians().tolist()))
    shapes = {row["name"]: tuple(row["shape"]) for row in record.fact("model.parameters") or ()}
    stacks: dict[tuple[str, object], dict[int, float]] = defaultdict(dict)
    for name, size in typical.items():
        found = NUMBER.search(name)
        # The bias before a normalisation has no gradient but rounding, wherever it stands.
        vector = name in shapes and len(shapes[name]) < 2
        if found and np.isfinite(size) and not vector:
            place = name[: found.start(2)] + "*" + name[found.end(2) :]
            stacks[place, shapes.get(name)][int(found.group(2))] = size
    ratios = [
        (blocks[min(blocks)] / blocks[max(blocks)], name)
        for (name, _), blocks in stacks.items()
        if len(blocks) >= STACK and blocks[max(blocks)] > 0
    ]
    if not ratios:
        return gradients_vanishing.not_applicable("the model has no stack of identical blocks")
    middle = float(np.median([ratio for ratio, _ in ratios]))
    course = course_of(record)
    flat = course is not None and course.finite and course.last > FLAT * course.first
    if middle > (RATIO_FLAT if flat else RATIO):
        return gradients_vanishing.clear(
            f"gradient of the first block relative to the last: {middle:.2g}"
        )
    if course is not None and course.learned:
        return gradients_vanishing.clear("the run learns")
    return gradients_vanishing.finding(
        evidence("gradient of the first block relative to the last", middle, 1.0, noise=0.9),
        grade="statistic",
        summary=f"the first block gets {middle:.1e} of the last block's gradient",
        where=min(ratios)[1],
        since_step=int(layers.steps[0]),
    )
