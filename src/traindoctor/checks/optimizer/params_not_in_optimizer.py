from typing import Any

from traindoctor.checks import laws
from traindoctor.checks.base import Outcome, check, evidence, without_optimizer
from traindoctor.checks.consequences import TOO_SHORT
from traindoctor.record import Record
from traindoctor.record.wording import counted, some_of

# A parameter must have been seen with a gradient this often; optimizers may appear one after the other.
LOOKS = 3
IN_A_LIST = (
    "Keep the modules in an `nn.ModuleList`: those in a plain list are not in `model.parameters()`."
)


@check(
    code="OPT005",
    slug="params-not-in-optimizer",
    title="Trainable parameters get gradients but are in no optimizer",
    law=laws.IN_USE,
    explains=TOO_SHORT,
    essential=True,
)
def params_not_in_optimizer(record: Record) -> Outcome:
    """
    ## What it does
    Compares, by identity, the parameters of the module trees that are trained with those that any optimizer
    holds. A parameter that requires a gradient, gets one and is in no group stays at its initial value. Where the script
    moves its weights itself, tensors with a gradient that it never moves are those.
    ## Why it matters
    The loss falls to a plateau: the rest of the model learns around a random head or embedding.
    ## How to fix
    Give them to the optimizer (`optimizer.add_param_group({"params": module.parameters()})`, or build it after
    the model is complete). If they are meant to be frozen, say so: `parameter.requires_grad_(False)`.
    ## When it stays silent
    Frozen parameters (LoRA bases), parameters of a second optimizer, averaged copies, experts not used yet.
    """
    coverage = record.fact("optimizer.coverage")
    if not coverage and (own := record.fact("optimizer.own")):
        return by_own_updates(own)
    if not coverage:
        return without_optimizer(params_not_in_optimizer, record)
    missing = [one for one in coverage["missing"] if one["looks_with_gradient"] >= LOOKS]
    if not missing:
        if coverage["looks"] < LOOKS:
            return params_not_in_optimizer.not_judged("too few steps were looked at")
        return params_not_in_optimizer.clear(
            f"all {coverage['trainable']} trainable parameters are in an optimizer"
        )
    names = ", ".join(one["name"] for one in missing[:3])
    more = coverage["num_missing"] - 3
    return params_not_in_optimizer.finding(
        evidence(
            "trainable parameters with a gradient in no optimizer", coverage["num_missing"], 0
        ),
        evidence("their share of the gradient norm", coverage["missing_share"], 0.0),
        summary=f"{coverage['num_missing']} trainable parameters are in no optimizer and never change: "
        f"{names}{f' and {more} more' if more > 0 else ''}",
        where=missing[0]["name"],
        remedy=IN_A_LIST if all("[" in one["name"] for one in missing) else None,
        since_step=coverage.get("since", 0),
        grade="exact",
    )


def by_own_updates(own: dict[str, Any]) -> Outcome:
    """Of a script that moves its weights itself: what has a gradient, and is left out."""
    resting, tensors = own["resting"], own["tensors"]
    if not resting:
        return params_not_in_optimizer.clear(f"all {tensors} tensors with a gradient are moved")
    return params_not_in_optimizer.finding(
        evidence(
            "tensors with a gradient that the script's own update never moves", len(resting), 0
        ),
        summary=f"The script's own update leaves {counted(len(resting), 'tensor')} with a gradient as they are: {some_of(resting, 3)}",
        where=resting[0],
        remedy="Put them on the list that the update goes through. If they are meant to be frozen, say so: `parameter.requires_grad_(False)`.",
        since_step=0,
        grade="exact",
    )
