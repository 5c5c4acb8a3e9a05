"""What is wrong with a gradient, in a sentence, and what to change: from the pattern that a test read off it."""

from collections.abc import Mapping

from traindoctor.record import Record

CONSTANT = "constant factor "
# A factor is a size of the batch where it is that number to rounding.
SAME = 2e-3
# Pattern of a test -> how it is said, and the change.
PATTERNS: Mapping[str, tuple[str, str]] = {
    "opposite sign": ("has the opposite sign", "Flip the sign in {}."),
    "transposed": ("is transposed", "Transpose the gradient that {} returns."),
    "not finite": (
        "is not finite",
        "Look for a division by 0 or an overflow in {}.",
    ),
    "not zero where it should be": (
        "is not 0 where the derivative is",
        "Let {} return 0 where the output does not depend on the input.",
    ),
    "no simple pattern": (
        "differs from the derivative everywhere",
        "Derive {} again from the forward pass, one factor at a time.",
    ),
}


def said(pattern: str, record: Record, *, of: str | None = None) -> str:
    """'the gradient is 384 times too large (384 = batch x length)'"""
    gradient = "the gradient" if of is None else f"the gradient of {of}"
    if pattern in PATTERNS:
        return f"{gradient} {PATTERNS[pattern][0]}"
    factor = constant(pattern)
    if factor is None:
        return f"{gradient} is {pattern}"
    if factor < 0:
        return f"{gradient} is {factor:.4g} times what it should be"
    size = max(factor, 1 / factor)
    text = f"{gradient} is {size:.4g} times too {'large' if factor > 1 else 'small'}"
    known = size_of_the_batch(size, record)
    return f"{text} ({size:.0f} = {known})" if known else text


def remedy(pattern: str, backward: str, record: Record) -> str | None:
    """For this pattern alone; None where nothing more special can be said than for all."""
    if pattern in PATTERNS:
        advice = PATTERNS[pattern][1].format(backward)
    elif (factor := constant(pattern)) is None:
        part = "a block, tile or mask is left out" if pattern.startswith("zero") else "it is wrong"
        advice = f"Look at what {backward} does there: {part}."
    elif factor <= 0:
        advice = f"Correct the factor in {backward}."
    else:
        large = factor > 1
        known = size_of_the_batch(max(factor, 1 / factor), record)
        forgotten = "the division of a mean was forgotten" if large else "it is divided twice"
        why = f": {forgotten}" if known else ""
        verb = "Divide" if large else "Multiply"
        advice = f"{verb} the gradient in {backward} by {max(factor, 1 / factor):.4g}{why}."
    return f"{advice} `traindoctor gradcheck module:function` tests it in seconds."


def constant(pattern: str) -> float | None:
    """The factor that a pattern names."""
    if not pattern.startswith(CONSTANT):
        return None
    factor = float(pattern.removeprefix(CONSTANT).split()[0])
    return factor or None


def size_of_the_batch(size: float, record: Record) -> str | None:
    """What of a batch is so large."""
    rows, tokens = record.get("batch.rows"), record.get("batch.tokens")
    for name, series in (("batch size", rows), ("batch x length", tokens)):
        if series is not None and len(series) and size > 1:
            if abs(series.median() - size) <= SAME * size:
                return name
    return None
