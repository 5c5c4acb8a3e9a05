from traindoctor.checks import laws
from traindoctor.checks.base import Outcome, check, evidence, wanted_exam
from traindoctor.checks.consequences import NOT_LEARNING, NOTHING_PASSES
from traindoctor.checks.model.base import ANOTHER_START
from traindoctor.record import Record

# Healthy: weights 0.11-1.0 of 1/sqrt(fan in), scores 0.05 and more. Ten times less silences a stack by itself.
WEIGHTS, SCORES, SILENT = 0.03, 0.01, 0.01
# Somewhat small weights silence a deep stack without norms: scores of 5e-11 and 1e-8 in the sick cases, at 0.04 and
# 0.16 per layer.
SMALL, GONE = 0.3, 1e-5
STEPS = 20
# A run that gets this far below the frequencies of targets learns in spite of its start.
LEARNS = 0.4
# Between the two limits the loss decides: it hardly moves.
MOVED = 0.03
# Losses whose mean stands for where a stretch ends.
LATEST = 5


@check(
    code="MOD007",
    slug="init-too-small",
    title="The weights are initialised so small that no signal passes",
    wants=["init_scale"],
    law=laws.REACHED,
    undecided=ANOTHER_START,
    explains=(*NOTHING_PASSES, "attention-scale-wrong", *NOT_LEARNING),
)
def init_too_small(record: Record) -> Outcome:
    """
    ## What it does
    Looks at the first step: the size of the weights against 1/sqrt(fan_in) and the spread of the scores; then
    whether the loss moves in the first steps. Weights that start at zero, with a gradient of zero, are looked at
    again later: where both factors of a product are zero, neither ever moves.
    ## Why it matters
    Each layer shrinks signal and gradient; the early layers get nothing to learn from.
    ## How to fix
    Initialise matrices with a standard deviation of about 0.02 or 1/sqrt(fan_in); of two factors that are
    multiplied (low-rank weights, a gate and what it lets through) at most one may start at zero.
    ## When it stays silent
    Single matrices that start at zero on purpose (LoRA, zero-initialised outputs), and runs whose loss falls.
    """
    result = wanted_exam(record, "init_scale")
    if result.values.get("zero_factors"):
        outcome = stays_zero(record)
        if outcome is not None:
            return outcome
    if "loss.token" not in record.names:
        return init_too_small.not_judged(
            "the loss of the first steps was not seen", why="not-measured"
        )
    scale, spread = result.values.get("weight_scale"), result.values.get("logits_std")
    if scale is None or spread is None:
        return init_too_small.not_judged("the first logits or weights could not be read")
    if result.values.get("frozen"):
        return init_too_small.clear(
            "most of the model is frozen, and what is trained starts small on purpose"
        )
    gone = scale < SMALL and 0 < spread < GONE
    if not gone and (scale > WEIGHTS or (scale > SILENT and spread > SCORES)):
        return init_too_small.clear(
            f"weights start at RMS {scale:.2g}/sqrt(fan_in), logits at standard deviation "
            f"{spread:.2g}"
        )
    loss = record["loss.token"].finite()
    if len(loss) < STEPS:
        return init_too_small.not_judged(f"needs {STEPS} finite losses, saw {len(loss)}")
    fallen = 1 - loss.values[: 2 * STEPS][-LATEST:].mean() / loss.values[0]
    if scale > SILENT and fallen > MOVED:
        return init_too_small.clear(f"the loss fell by {fallen:.0%} in the first steps")
    if loss.tail(LATEST).median() < LEARNS * loss.values[0]:
        return init_too_small.clear("the run learns in spite of its initialisation")
    return init_too_small.finding(
        evidence("weight RMS times sqrt(fan_in), median", scale, 0.6, noise=0.1, step=0),
        evidence("standard deviation of the logits", spread, 0.5, noise=0.1, step=0),
        evidence("relative drop of the loss over the first steps", float(fallen), "0.1 or more"),
        grade="statistic",
        since_step=0,
    )


def stays_zero(record: Record) -> Outcome | None:
    """Weights at zero without gradient at the first step: a later one tells whether they ever will move."""
    result = record.exam("zero_factors")
    if result is None or result.outcome == "refused":
        return init_too_small.not_judged(
            "weights start at zero and get no gradient; tested again later", wants="zero_factors"
        )
    if not result.done or not result.values["stuck"]:
        return None
    names = result.values["names"]
    return init_too_small.finding(
        evidence("weights that are exactly 0", len(names), 0, step=result.step),
        evidence("their gradient at every step looked at", 0.0, "> 0", step=result.values["first"]),
        evidence("weights that get a gradient once none of them is 0", result.values["stuck"]),
        where=names[0],
        since_step=0,
        summary=(
            "Weights that are multiplied with each other all start at zero, so none of them "
            "ever gets a gradient"
        ),
        grade="exact",
    )
