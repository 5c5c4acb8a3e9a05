import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from traindoctor.checks.base import Outcome, check, evidence
from traindoctor.record import Record

# Fewer points say nothing of where a run ends.
STEPS = 40
# Larger models than this are not small for what one machine reads in a short run.
SMALL = 30_000
# What counts of tokens reach, a transformer that has room passes. Without such counts: a share of the guess.
ROOM, GOOD = 0.1, 0.3
# The reference has the same batches and at most as many steps.
BETTER = 0.1
# A model with room takes one batch in: of the way from its loss to the least possible it goes this share or more in
# 80 steps on nothing but that batch. Character models: 0.98 and more from a width of 16 on, 0.68 at 8, 0.28 to
# 0.35 at 4; a Llama of width 4 on a chain of 160 states, where most of a row follows from the token before: 0.56.
TAKEN_IN = 0.6


@check(
    code="MOD013",
    slug="model-too-small",
    title="The model is too small for its data",
    needs=["loss.token"],
    min_steps=STEPS,
    explains=("undertrained",),
    outcome_only=True,
)
def model_too_small(record: Record) -> Outcome:
    """
    ## What it does
    For a small model whose loss stays above what counts of tokens reach: a plain reference model of a usual size is
    trained on the run's own batches, and the model itself has to memorise one batch.
    ## Why it matters
    No setting of the optimizer helps a model that cannot hold what the data has.
    ## How to fix
    More width first (at least 64 per head times heads), then more layers.
    ## When it stays silent
    Where the reference does no better, where the model can take in one batch (then it has room, and something else
    is slow), and whenever another cause explains the loss.
    """
    loss = record["loss.token"].finite()
    if len(loss) < STEPS:
        return model_too_small.not_judged("the loss is not finite")
    size = parameters(record)
    if size is not None and size > SMALL:
        return model_too_small.clear(f"the model has {size:,} parameters")
    last = float(np.mean(loss.values[-(len(loss) // 4) :]))
    if reached(record, last):
        return model_too_small.clear("the loss is below that of token count models")
    result = record.exam("reference_model")
    if result is None:
        return model_too_small.not_judged("no reference model was trained", wants="reference_model")
    if not result.done:
        return model_too_small.not_judged(f"no reference model could be trained: {result.reason}")
    values = result.values
    smaller = values["parameters"] > 2 * values["own_parameters"]
    if not smaller or values["held_out"] > last - BETTER * abs(last):
        return model_too_small.clear(
            f"a reference model reaches {values['held_out']:.3g}, this run {last:.3g}"
        )
    by_heart = record.exam("overfit_batch")
    if by_heart is None:
        return model_too_small.not_judged(
            "whether the model can memorise a single batch was not tested", wants="overfit_batch"
        )
    if not by_heart.done:
        return model_too_small.not_judged(
            f"fitting a single batch was not possible: {by_heart.reason}"
        )
    taken = taken_in(by_heart.values)
    if taken >= TAKEN_IN:
        return model_too_small.clear(
            f"the model memorises {taken:.0%} of a single batch, so it is large enough"
        )
    return model_too_small.finding(
        evidence("loss of the run", last, values["held_out"], noise=values["noise"]),
        evidence("share of a single batch that can be memorised", taken, "0.6 or more"),
        evidence("parameters of the run", values["own_parameters"], values["parameters"]),
        grade="experiment",
        status="likely",
        summary=(
            f"{values['own_parameters']:,} parameters cannot memorise even one batch: a "
            f"reference model with {values['parameters']:,} reaches {values['held_out']:.3g} "
            f"on the same data, this run {last:.3g}"
        ),
    )


def reached(record: Record, last: float) -> bool:
    """The loss is where a model with room would be."""
    pairs, single = record.get("ladder.bigram"), record.get("ladder.unigram")
    if single is None or not len(single.finite()):
        return False
    guess = single.finite().tail(10).median()
    if pairs is not None and len(pairs.finite()):
        counted = pairs.finite().tail(10).median()
        if counted < guess - ROOM:  # a text: a token says something of the next
            return last < counted + ROOM
    return last < GOOD * guess


def taken_in(values: Mapping[str, Any]) -> float:
    """How far one batch was learned by heart, of the way there is."""
    way = values["start"] - values["floor"]
    return (values["start"] - values["end"]) / way if way > 0 else 1.0


def parameters(record: Record) -> int | None:
    rows = record.fact("model.parameters")
    if not isinstance(rows, list) or not rows:
        return None
    return sum(math.prod(row["shape"]) for row in rows if isinstance(row, dict) and "shape" in row)
