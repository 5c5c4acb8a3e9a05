from traindoctor.checks import laws
from traindoctor.checks.base import Finding, Outcome, check, done_exam, evidence, wanted_exam
from traindoctor.checks.consequences import TOO_SHORT
from traindoctor.record import ExamResult, Record

# Healthy scripts have 0.9999 and more (a balance term that is not printed); another loss has 0.002. Terms may be
# printed one by one: the gradient is projected on all that is read, so 0.9 leaves room for an unread regulariser.
COSINE = 0.9
# Two losses computed apart start out alike: at uniform scores the gradient of a squared error on probabilities has
# a cosine of 0.99 with that of the cross-entropy, later 0.2 to 0.7. They are compared again from this step on.
SETTLED = 30
SAME = 0.9999
# A term of the loss without gradient: this share of the whole gradient is missing with it.
UNHEARD = 0.2
# A gradient that is not even that of the step's own root is a matter for backward-incorrect.
RIGHT_GRADIENT = 1e-3


@check(
    code="LOS001",
    slug="loss-gradient-mismatch",
    title="The gradient belongs to another loss than the one that is reported",
    wants=["printed_loss", "tape_gradient"],
    law=laws.REPORTED,
    explains=("lr-too-high", "gradient-not-flowing", *TOO_SHORT),
    urgent=True,
)
def loss_gradient_mismatch(record: Record) -> Outcome:
    """
    ## What it does
    Takes the gradient of every loss that the script reads (`item()`, `float()`, a format) on a replay of the step,
    and the cosine between the gradient that the optimizer got and their best combination. Gradients that a script
    writes to `.grad` itself are compared with those of the backward pass, parameter by parameter. Terms that are added
    to the loss and carry no gradient (computed under `no_grad`) are looked through.
    ## Why it matters
    The printed loss cannot fall, or falls by chance: something else is being minimised. Report D: the forward
    measured cross-entropy, the backward computed the gradient of a mean squared error.
    ## How to fix
    Call backward on the loss that you report; or, with gradients by hand, derive them from that loss.
    ## When it stays silent
    Auxiliary terms that are printed beside the main loss, running means, perplexity, accuracy, norms, and losses
    with a small unprinted regulariser. Each rank of a data-parallel run prints its own loss: not judged there.
    """
    result, gradient = wanted_exam(record, "printed_loss"), wanted_exam(record, "tape_gradient")
    if (swapped := _swapped(record)) is not None:
        return swapped
    values = result.values
    if (values.get("unheard") or {}).get("share", 0.0) >= UNHEARD:
        return _unheard(result)
    cosine = float(values["cosine"])
    if values.get("apart") and COSINE <= cosine < SAME and values["step"] < SETTLED:
        return loss_gradient_mismatch.not_judged(
            (
                "the printed loss is computed separately from the optimised one; they agree at "
                "the first steps"
            ),
            wants="printed_loss",
        )
    if cosine >= COSINE:
        return loss_gradient_mismatch.clear(
            f"the gradient is that of the printed loss (cosine {cosine:.4f})"
        )
    if gradient.values["difference"] > RIGHT_GRADIENT:
        return loss_gradient_mismatch.clear("the backward pass itself is wrong")
    printed, optimised = values["reads"][0], values["optimised"][0]
    said = "printed" if values.get("was_read", True) else "computed but not optimised"
    return loss_gradient_mismatch.finding(
        evidence(
            f"cosine with the gradient of the {said} loss",
            cosine,
            1.0,
            noise=1e-3,
            step=result.step,
        ),
        evidence("loss that is reported", printed["value"], step=result.step),
        evidence("value backward is called on", optimised["value"], step=result.step),
        summary=(
            f"the gradient is not that of the {said} loss (cosine {cosine:.3f}; "
            f"{printed['line']}); backward is called on another value ({optimised['line']})"
        ),
        line=optimised["line"],
        since_step=0,
        status=None if values.get("was_read", True) else "likely",
        grade="exact",
    )


def _unheard(result: ExamResult) -> Finding:
    """The loss has a term that no gradient is taken of."""
    term = result.values["unheard"]
    return loss_gradient_mismatch.finding(
        evidence(
            "share of the loss's gradient that is missing",
            term["share"],
            0.0,
            noise=0.01,
            step=result.step,
        ),
        evidence("value of the term", term["value"], step=result.step),
        summary=(
            f"the loss has a term ({term['line']}) that is computed without gradient: it is "
            "printed but never optimised"
        ),
        remedy=(
            "Compute the term outside `torch.no_grad()` and without `detach()`; only the "
            "teacher's or target's part belongs inside."
        ),
        line=term["line"],
        since_step=0,
        grade="exact",
    )


def _swapped(record: Record) -> Outcome | None:
    """Each parameter is stepped along the gradient of another one of its shape."""
    arrival = done_exam(record, "gradient_arrival")
    if arrival is None or not arrival.values.get("swapped"):
        return None
    pairs = arrival.values["swapped"]
    name, other = next(iter(pairs.items()))
    return loss_gradient_mismatch.finding(
        evidence("parameters with the gradient of another one", len(pairs), 0, step=arrival.step),
        summary=(
            f"{len(pairs)} parameters get the gradient of another parameter of the same "
            f"shape: `.grad` of {name} holds that of {other}"
        ),
        remedy=(
            "Keep gradients and parameters in the same order: zip the results of "
            "`torch.autograd.grad` with the very list it was given."
        ),
        where=name,
        since_step=0,
        grade="exact",
    )
