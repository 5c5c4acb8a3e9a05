from traindoctor.checks.base import Outcome, check, evidence, without_text
from traindoctor.record import Record

# Texts that go in circles: half of them by taking the likeliest token, hardly any by sampling.
LOOPS, FEW = 0.5, 0.15


@check(
    code="GEN001",
    slug="greedy-repetition",
    title="Generated text loops because the most likely token is always taken",
    undecided="greedy decoding is a choice, not an error in training",
    outcome_only=True,
)
def greedy_repetition(record: Record) -> Outcome:
    """
    ## What it does
    Lets the model continue rows of its own batch, once with the likeliest token and once by sampling, and counts
    the texts that loop: more than half of their 4-grams have occurred in them before.
    ## Why it matters
    Loops look like a broken model, but they come from decoding: the same model writes well when sampled.
    ## How to fix
    Sample: `--temperature 0.8 --top-p 0.95`, or lower the score of tokens that were just written with
    `--repetition-penalty 1.1`.
    ## When it stays silent
    Runs that write no text samples; texts that loop in the data as well; models that loop when sampled too:
    then decoding is not the reason.
    """
    if not record.fact("text.samples"):
        return without_text(greedy_repetition, record)
    result = record.exam("generation")
    if result is None:
        return greedy_repetition.not_judged("no text has been generated yet", wants="generation")
    if not result.done:
        return greedy_repetition.not_judged(f"no text could be generated: {result.reason}")
    greedy, sampled, data = (result.values[name] for name in ("greedy", "sampled", "data"))
    if greedy["loops"] < LOOPS or sampled["loops"] > FEW or data["loops"] > FEW:
        return greedy_repetition.clear(f"{greedy['loops']:.0%} of greedy samples loop")
    if not always_greedy(record):
        # The run samples: loops would only come with temperature 0.
        return greedy_repetition.clear("text is sampled, and the samples do not loop")
    return greedy_repetition.finding(
        evidence(
            "share of greedy samples that loop",
            greedy["loops"],
            0.0,
            noise=0.1,
            step=result.step,
        ),
        evidence("share of random samples that loop", sampled["loops"], step=result.step),
        grade="statistic",
    )


def always_greedy(record: Record) -> bool:
    samples = record.fact("text.samples")
    rows = samples if isinstance(samples, list) else [samples]
    heat = [row.get("temperature") for row in rows if isinstance(row, dict)]
    return bool(heat) and all(value == 0 for value in heat)
