from traindoctor.checks import laws
from traindoctor.checks.base import Finding, Outcome, check, evidence, wanted_exam
from traindoctor.checks.consequences import TOO_SHORT
from traindoctor.record import ExamResult, Record

# A share of the tensors, or of the gradient they would have, from which on a model is crippled. Below it the cut
# may be meant (one scale that is held fixed).
SHARE = 0.1


@check(
    code="GRD003",
    slug="gradient-not-flowing",
    title="Trainable parameters that shape the loss get no gradient",
    wants=["gradient_flow"],
    law=laws.REACHED,
    undecided="the parameters get a gradient through another path",
    explains=("gradients-vanishing", *TOO_SHORT),
    urgent=True,
    essential=True,
)
def gradient_not_flowing(record: Record) -> Outcome:
    """
    ## What it does
    Lists trainable parameters (that an optimizer holds) without gradient on every step that was recorded, and asks whether the
    loss moves with them: by a replay that looks through `detach` and `no_grad`, and by changing their values. A matrix
    whose gradient vanishes with the rounding when it is computed in float64 gets none either.
    ## Why it matters
    These parameters stay as they were initialised; the rest of the model learns on top of random features.
    ## How to fix
    Take out the `detach()`, `.data`, `torch.no_grad()`, `torch.tensor(x)` or `.item()` at the line that is named;
    give inputs that require gradients to a reentrant checkpoint, or use `use_reentrant=False`.
    ## When it stays silent
    A cut of one path of several is named as possible (`.data`, which nobody needs any more, as likely).
    Frozen parameters, teachers and target networks that no optimizer holds, stop-gradients on one of two paths,
    experts without tokens, adapters whose gradient is zero at the start, parameters that are not used at all.
    """
    result = wanted_exam(record, "gradient_flow")
    values = result.values
    blocked, trainable = int(values["blocked"]), max(1, int(values["trainable"]))
    if not blocked and values.get("left"):
        return _left_torch(result)
    if not blocked and values.get("partial", 0.0) >= SHARE:
        return _one_path(result)
    if values.get("only_together"):
        return _only_together(result)
    if not blocked and values["silent"] == values["trainable"]:
        return gradient_not_flowing.not_judged("no parameter affects the loss at this step")
    if not blocked and values.get("cancelled"):
        return _cancelled(result)
    if not blocked:
        return gradient_not_flowing.clear(
            f"{trainable - values['silent']} of {trainable} parameters get a gradient"
        )
    grave = blocked >= SHARE * trainable or values["share_of_gradient"] >= SHARE
    cut = (values["cuts"] or [None])[0]
    escape = (values["escapes"] or [None])[0]
    line = cut["line"] if cut else (escape["line"] if escape else None)
    how = (
        f"{cut['kind']} at {cut['line']}"
        if cut
        else (f"{escape['function']} at {line}" if escape else "something")
    )
    return gradient_not_flowing.finding(
        evidence(
            "trainable tensors that affect the loss but get no gradient",
            blocked,
            0,
            step=result.step,
        ),
        evidence("trainable tensors", trainable),
        evidence("share of the whole gradient that is lost", values["share_of_gradient"], 0.0),
        summary=(
            f"{blocked} of {trainable} parameters get no gradient ({values['names'][0]}, "
            f"...): {how} blocks it"
        ),
        remedy=remove(cut["kind"], cut["line"]) if cut else None,
        where=values["names"][0],
        line=line,
        since_step=int(values.get("begun", 0)),
        status=None if grave else "possible",
        grade="exact",
    )


def _only_together(result: ExamResult) -> Finding:
    """Every gradient is zero, now and after every step: a low-rank adapter whose factors both start at zero."""
    trainable = int(result.values["trainable"])
    return gradient_not_flowing.finding(
        evidence("trainable tensors whose gradient is zero", trainable, 0, step=result.step),
        evidence("the loss changes when those that are zero are moved together", "yes"),
        evidence("... when a single tensor is moved", "no"),
        summary=(
            f"None of the {trainable} trainable tensors gets a gradient: at these values they affect the loss only "
            "together, as two factors of a product do that are both zero"
        ),
        remedy="Start one factor of each pair at random values and only the other one at zero.",
        where=result.values["names"][0],
        since_step=0,
        grade="exact",
    )


def _cancelled(result: ExamResult) -> Finding:
    """The loss does not move with them, whatever they are: only rounding comes back."""
    names = result.values["cancelled"]
    return gradient_not_flowing.finding(
        evidence(
            "matrices whose gradient from the main term is rounding alone",
            len(names),
            0,
            step=result.step,
        ),
        summary=(
            f"{len(names)} matrices ({names[0]}, ...) get rounding for a gradient: what is made of them cancels "
            "before it reaches the loss"
        ),
        remedy=(
            "Look for a value that is divided by itself, or subtracted from itself: weights of a single expert that are "
            "renormalised to 1, a softmax or a norm over one element."
        ),
        where=names[0],
        since_step=0,
        status="likely",
        grade="exact",
    )


def remove(kind: str, line: str) -> str | None:
    """What to change where a single call is known to cut the path; None for any other kind of cut."""
    if kind not in ("detach", ".data", "no_grad"):
        return None
    name = {"detach": "`.detach()`", ".data": "`.data`", "no_grad": "`torch.no_grad()`"}[kind]
    return f"Take the {name} at {line} out of the path from the parameters to the loss."


def _left_torch(result: ExamResult) -> Finding:
    """Whether what comes back into the model depends on it cannot be followed: likely, not proven."""
    values = result.values
    escape = values["escapes"][0]
    return gradient_not_flowing.finding(
        evidence(
            "trainable tensors without gradient whose values leave PyTorch",
            len(values["left"]),
            0,
            step=result.step,
        ),
        evidence("trainable tensors", int(values["trainable"])),
        grade="statistic",
        summary=(
            f"{len(values['left'])} parameters get no gradient ({values['left'][0]}, ...): "
            f"their values leave PyTorch through {escape['function']} at {escape['line']}"
        ),
        where=values["left"][0],
        line=escape["line"],
        since_step=0,
    )


def _one_path(result: ExamResult) -> Finding:
    """All tensors get a gradient, but a part of it is cut off where weights go on working with the value."""
    values = result.values
    return gradient_not_flowing.finding(
        evidence(
            "share of the whole gradient that is lost", values["partial"], 0.0, step=result.step
        ),
        summary=(
            f"{values['partial_kind']} at {values['partial_line']} blocks one path of the gradient"
        ),
        remedy=remove(values["partial_kind"], values["partial_line"]),
        where=values["partial_module"] or None,
        line=values["partial_line"],
        since_step=0,
        status="likely" if values["partial_kind"] == ".data" else "possible",
        grade="exact",
    )
