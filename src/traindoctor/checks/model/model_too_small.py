from __future__ import annotations

import math

import numpy as np

from traindoctor.checks.base import Outcome, check, evidence
from traindoctor.record import Record

# The loss stands still: the last quarter is within this of the quarter before, relative.
STILL, STEPS = 0.05, 40
# Larger models than this are not small for what one machine reads in a short run.
SMALL = 30_000
# What a count model of two tokens reaches, a transformer that has room passes.
ROOM = 0.1
# The reference has the same batches and the same number of steps.
BETTER = 0.1


@check(
    code="MOD013",
    slug="model-too-small",
    title="The model is too small for its data",
    needs=["loss.token"],
    min_steps=STEPS,
)
def model_too_small(record: Record) -> Outcome | None:
    """
    ## What it does
    When the loss stands still above what counts of two tokens reach, a plain reference model of a usual size is
    trained on the run's own batches, and the two are compared.
    ## Why it matters
    No setting of the optimizer helps a model that cannot hold what the data has.
    ## How to fix
    More width first (at least 64 per head times heads), then more layers.
    ## When it stays silent
    While the loss falls; where the reference does no better; and whenever another cause explains the plateau.
    """
    loss = record["loss.token"].finite()
    if len(loss) < STEPS:
        return model_too_small.not_judged("the loss is not finite")
    size = parameters(record)
    if size is not None and size > SMALL:
        return model_too_small.clear(f"the model has {size:,} parameters")
    quarter = len(loss) // 4
    last, before = (
        float(np.mean(loss.values[-quarter:])),
        float(np.mean(loss.values[-2 * quarter : -quarter])),
    )
    if before - last > STILL * abs(before):
        return model_too_small.clear("the loss falls well")
    rung = record.get("ladder.bigram") or record.get("ladder.unigram")
    if rung is not None and len(rung) and last < rung.tail(quarter).median() + ROOM:
        return model_too_small.clear("the loss is below what counts of tokens reach")
    result = record.exam("reference_model")
    if result is None:
        return model_too_small.not_judged(
            "no reference model has been trained", wants="reference_model"
        )
    if not result.done:
        return model_too_small.not_judged(f"no reference model could be trained: {result.reason}")
    values = result.values
    smaller = values["parameters"] > 2 * values["own_parameters"]
    if not smaller or values["held_out"] > last - BETTER * abs(last):
        return model_too_small.clear(
            f"a reference model reaches {values['held_out']:.3g}, the run {last:.3g}"
        )
    return model_too_small.finding(
        evidence("loss of the run", last, values["held_out"], noise=values["noise"]),
        evidence("parameters of the run", values["own_parameters"], values["parameters"]),
        grade="experiment",
        status="likely",
    )


def parameters(record: Record) -> int | None:
    rows = record.fact("model.parameters")
    if not isinstance(rows, list) or not rows:
        return None
    return sum(math.prod(row["shape"]) for row in rows if isinstance(row, dict) and "shape" in row)
