from typing import Any

from traindoctor.checks import laws
from traindoctor.checks.base import Outcome, check, evidence, without_optimizer
from traindoctor.checks.consequences import TOO_SHORT
from traindoctor.record import Record
from traindoctor.record.wording import counted

# Steps looked at before "never had a gradient" is said: an expert of a mixture may rest for a while, but it
# is in the module tree and does not count here anyway.
LOOKS = 4


@check(
    code="OPT006",
    slug="optimizer-holds-stale-params",
    title="The optimizer holds tensors that the model no longer uses",
    law=laws.IN_USE,
    # The old tensors are stepped, cleared and perhaps clipped; the model's own are not.
    explains=(
        "params-not-in-optimizer",
        "optimizer-never-steps",
        "missing-zero-grad",
        "clip-ineffective",
        *TOO_SHORT,
    ),
)
def optimizer_holds_stale_params(record: Record) -> Outcome:
    """
    ## What it does
    Looks, by identity and over the whole run, for parameters of the optimizer that are in no module that is
    called and never have a gradient, while parameters of the model that do are in no optimizer: they were
    replaced after the optimizer was built. The same for scripts that move their weights themselves.
    ## Why it matters
    The new parameters never change, and nothing says so.
    ## How to fix
    Build the optimizer after the last change of the model: resizing embeddings, replacing heads, tying,
    copying or re-creating the model.
    ## When it stays silent
    Experts that are not used (they are in the module tree), and old tensors in the optimizer while every
    parameter of the model is there too.
    """
    coverage = record.fact("optimizer.coverage")
    if not coverage and (own := record.fact("optimizer.own")):
        return by_own_updates(own)
    if not coverage:
        return without_optimizer(optimizer_holds_stale_params, record)
    if coverage["looks"] < LOOKS:
        return optimizer_holds_stale_params.not_judged("too few steps were looked at")
    stale, missing = coverage["stale"], coverage["missing"]
    if not stale or not missing:
        return optimizer_holds_stale_params.clear(
            "the optimizer holds the model's current parameters"
        )
    pairs = [(old, new) for new in missing for old in stale if _alike(old, new)]
    if not pairs:
        return optimizer_holds_stale_params.not_judged(
            "unused parameters in the optimizer do not match any that it lacks"
        )
    old, new = pairs[0]
    return optimizer_holds_stale_params.finding(
        evidence("optimizer parameters in no module that is called", coverage["num_stale"], 0),
        evidence("model parameters in no optimizer", coverage["num_missing"], 0),
        evidence("their share of the gradient norm", coverage["missing_share"], 0.0),
        summary=(
            f"The optimizer holds a tensor of shape {tuple(old['shape'])} that the model no "
            f"longer uses, instead of {new['name']} {tuple(new['shape'])}: the model was "
            "changed after the optimizer was built"
        ),
        where=new["name"],
        since_step=coverage.get("since", 0),
        grade="exact",
    )


def by_own_updates(own: dict[str, Any]) -> Outcome:
    """A script that moves its weights itself: does it move those that the loss is computed with?"""
    deserted, alone = own.get("deserted", 0), own.get("left_alone", 0)
    if not deserted or not alone:
        return optimizer_holds_stale_params.clear("the tensors that are moved are those in use")
    return optimizer_holds_stale_params.finding(
        evidence("tensors that the update goes through and no gradient goes to", deserted, 0),
        evidence("others that the gradient goes to and nothing moves", alone, 0),
        summary=(
            f"The script's own update holds {counted(deserted, 'tensor')} that the loss no longer depends on; the "
            f"{alone} in their place get a gradient and are never moved"
        ),
        remedy="Write new values into the tensors that are there (`p.copy_(...)` under `no_grad`), or hand the new ones "
        "to the update.",
        since_step=0,
        grade="exact",
    )


def _alike(old: dict[str, Any], new: dict[str, Any]) -> bool:
    """The same shape but for one dimension: a vocabulary that grew, a head with more classes."""
    a, b = old["shape"], new["shape"]
    return len(a) == len(b) and sum(x != y for x, y in zip(a, b)) <= 1
