from traindoctor.checks.base import Outcome, check, evidence, wanted_exam
from traindoctor.checks.consequences import NOT_LEARNING, NOTHING_PASSES
from traindoctor.checks.model.base import ANOTHER_START, WHOLE
from traindoctor.record import Record

# Fewer tokens may leave a unit silent by chance.
TOKENS = 32


@check(
    code="MOD010",
    slug="dead-activations",
    title="A whole layer of units never activates",
    wants=["dead_units"],
    undecided=ANOTHER_START,
    explains=(*NOTHING_PASSES, "gradient-not-flowing", *NOT_LEARNING),
)
def dead_activations(record: Record) -> Outcome:
    """
    ## What it does
    Counts the units of each ReLU that are zero for every token of a batch.
    ## Why it matters
    A unit that never activates gets no gradient and never will: the layer is a constant, and what lies before it
    learns nothing.
    ## How to fix
    Look at the bias (a large negative one kills all units), at the learning rate of the step where they died, or
    use GELU or SiLU.
    ## When it stays silent
    Part of a layer that is silent on one batch; experts that got no token; activations that are never
    exactly zero.
    """
    result = wanted_exam(record, "dead_units")
    layers = [l for l in result.values["layers"] if l["tokens"] >= TOKENS]
    if not layers:
        return dead_activations.not_judged("too few tokens in the batch to tell")
    worst = max(layers, key=lambda l: l["dead"])
    if worst["dead"] < WHOLE:
        return dead_activations.clear(
            f"at most {worst['dead']:.0%} of a layer's units never activate"
        )
    dead = [l for l in layers if l["dead"] >= WHOLE]
    earlier = [
        r
        for r in record.exams("dead_units")
        if r.done and max(l["dead"] for l in r.values["layers"]) >= WHOLE
    ]
    return dead_activations.finding(
        evidence(
            "share of units that never activate", worst["dead"], 0.0, noise=0.1, step=result.step
        ),
        evidence("layers affected", len(dead), 0),
        where=worst["module"] or None,
        line=worst["line"],
        since_step=min(r.step for r in earlier),
        grade="exact",
    )
