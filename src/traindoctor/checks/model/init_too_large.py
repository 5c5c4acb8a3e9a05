from traindoctor.checks.base import Outcome, check
from traindoctor.checks.consequences import NOT_LEARNING, TOO_LONG
from traindoctor.checks.model.base import ANOTHER_START, large_start
from traindoctor.record import Record


@check(
    code="MOD006",
    slug="init-too-large",
    title="The weights are initialised far too large",
    wants=["init_scale"],
    undecided=ANOTHER_START,
    explains=(
        "attention-scale-wrong",
        "attention-blind",
        "lr-too-high",
        "no-warmup",
        "clip-too-tight",
        "unstable-softmax",
        *TOO_LONG,
        *NOT_LEARNING,
    ),
    signs=("always-clipped",),
)
def init_too_large(record: Record) -> Outcome:
    """
    ## What it does
    Looks at the first step: the loss against that of guessing, the spread of the scores and of attention scores,
    the size of the weights against 1/sqrt(fan_in). At least two must be far out.
    ## Why it matters
    Saturated softmaxes pass no gradient: the first hundreds of steps only undo the start, or nothing is learned.
    ## How to fix
    Initialise matrices with a standard deviation of about 0.02 or 1/sqrt(fan_in); an embedding that is tied to
    the output needs it too (`nn.Embedding` starts at 1).
    ## When it stays silent
    Pretrained models: their loss is below that of guessing. A single number that is out of range. Scores that a factor
    behind the head makes wide, where no weight is large. A start that the run was soon rid of.
    """
    found = large_start(record)
    if isinstance(found, str):
        return init_too_large.clear(found)
    worst = next(iter(found.values()))
    return init_too_large.finding(
        *found.values(),
        grade="statistic",
        since_step=0,
        summary=f"{init_too_large.title}: {worst.measure} is {worst.value:.2g}",
    )
