from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from traindoctor.checks import laws
from traindoctor.checks.base import (
    Clear,
    Evidence,
    Finding,
    NotApplicable,
    Outcome,
    check,
    evidence,
)
from traindoctor.checks.consequences import TOO_LONG, TOO_SHORT
from traindoctor.checks.wrong_gradients import remedy, said
from traindoctor.record import ExamResult, Record

# Right gradients differ from the replay's by 0 to 9e-7 in float32, wrong ones by 0.2 and more.
WRONG = 1e-4
# ... and by this many times the noise that the step's own precision and conditioning allow.
TIMES_NOISE = 10.0
# Asked where the gradient is wrong and no Function or operator alone is known to be the reason.
MODULE = "guilty_module"
# Of the parameters that a hook changes at all.
MOSTLY = 0.5


@check(
    code="GRD002",
    slug="backward-incorrect",
    title="A backward pass is not the derivative of its forward pass",
    law=laws.GRADIENT,
    explains=(
        "loss-gradient-mismatch",
        "loss-scale-wrong",
        "lr-too-high",
        "no-warmup",
        "clip-too-tight",
        "gradient-not-flowing",
        "nan-from-op",
        *TOO_LONG,
        *TOO_SHORT,
    ),
    urgent=True,
    essential=True,
    signs=("always-clipped",),
)
def backward_incorrect(record: Record) -> Outcome:
    """
    ## What it does
    Replays the step in its own precision with autograd seeing into the forward of every `autograd.Function`, and
    compares parameter by parameter with the gradient that the optimizer got. If they differ, each Function is
    tested alone, which names the guilty one, its factor and the pattern of the error. What torch cannot look into
    is tested by finite differences. Where no Function alone is the reason, modules are tested on their real inputs,
    from the whole model down into the part that fails, and the innermost one that does is named. Writes through `.data`
    into values that the backward pass needs are made in a replay as well: the one that then gives the script's own
    gradient is named.
    ## Why it matters
    The optimizer follows a wrong direction, or a right one with a wrong length; nothing else can repair that.
    ## How to fix
    Correct the backward of the Function that is named: a constant factor is a forgotten mean (or batch size), zeros
    from an index on are a tile or block that is left out, wrong masked positions a mask that is ignored.
    `traindoctor gradcheck module:function` tests it in seconds.
    ## When it stays silent
    Straight-through estimators, gradient reversal and scaling (a Function whose forward gives its input back changes
    gradients on purpose), gradient hooks, and data-parallel runs whose gradients are means over ranks.
    """
    whole = record.exam("tape_gradient")
    if whole is None:
        return backward_incorrect.not_judged("the gradient was not checked", wants="tape_gradient")
    alone = record.exam("functions_alone")
    if whole.done and whole.values.get("written_over"):
        return _written_over(whole)
    if whole.done and not _differs(whole.values) and not whole.values["opaque"]:
        if whole.values["hooked"] and whole.values["last_step"] == 0:
            return backward_incorrect.not_judged(
                "gradient hooks of the script's were seen at the first step alone",
                wants="tape_gradient",
            )
        largest = whole.values["difference"]
        return backward_incorrect.clear(
            f"the gradient is that of autograd on the same step, to within {largest:.1e}"
        )
    if alone is None:
        return backward_incorrect.not_judged(
            "the custom Functions were not tested", wants="functions_alone"
        )
    if alone.done:
        found = _guilty(record, whole, alone)
        if found is not None:
            return found
    if not whole.done:
        if alone.outcome == "not-applicable":
            return backward_incorrect.not_applicable("no backward pass is hand-written")
        return backward_incorrect.not_judged(whole.reason, wants="tape_gradient")
    unseen = _unseen(whole, alone)
    differences = record.exam("finite_difference")
    if _differs(whole.values):
        outcome = _rest(record, whole, alone)
    elif unseen:
        outcome = _by_differences(differences, unseen)
    else:
        outcome = _passed(whole, differences)
    return _in_module(record, outcome, record.exam(MODULE), alone)


def _written_over(whole: ExamResult) -> Finding:
    """With one write that autograd does not notice the replay gives the script's own gradient."""
    write, values = whole.values["written_over"], whole.values
    return backward_incorrect.finding(
        _against_replay(values),
        _error(
            "the same, with the write made in the repeated step as well",
            {**values, "difference": write["difference"]},
        ),
        summary=(
            "a value that backward needs is overwritten before backward runs "
            f"({write['op']}, {write['line']}): the gradient is computed from other values "
            "than the loss"
        ),
        remedy=(
            "Work on a copy: use `.detach().clone()` instead of `.data` before writing. "
            "Autograd does not notice writes through `.data` or a NumPy view."
        ),
        line=write["line"],
        since_step=0,
        grade="exact",
    )


def _error(measure: str, of: Mapping[str, Any]) -> Evidence:
    return evidence(measure, of["difference"], 0.0, noise=of["noise"], step=of["step"])


def _against_replay(values: Mapping[str, Any]) -> Evidence:
    return _error("relative error of the gradient against autograd on the same step", values)


def _differs(values: Mapping[str, Any]) -> bool:
    return bool(values["difference"] > max(WRONG, TIMES_NOISE * values["noise"]))


def _guilty(record: Record, whole: ExamResult, alone: ExamResult) -> Finding | None:
    tested = [f for f in alone.values["functions"] if f["test"] != "none"]
    wrong = [f for f in tested if _differs(f) and not f["surrogate"]]
    if not wrong:
        return None
    worst = max(wrong, key=lambda f: float(f["difference"]))
    # Rounding has no derivative worth the name: what stands in its place is a choice.
    meant = bool(worst["identity"] or worst.get("rounds"))
    items = [
        _error(
            f"relative error of {worst['name']}'s gradient against the derivative of its forward",
            {**worst, "step": alone.step},
        )
    ]
    if worst["factor"] is not None:
        items.append(evidence("factor", worst["factor"], 1.0, noise=worst["noise"]))
    if whole.done:
        items.append(
            evidence(
                "relative error of the whole gradient against autograd on the same step",
                whole.values["whole"],
                0.0,
            )
        )
    by = "" if worst["test"] == "tape" else f" ({worst['test']})"
    return backward_incorrect.finding(
        *items,
        summary=f"the backward of {worst['name']} is wrong: {said(worst['pattern'], record)}{by}",
        remedy=remedy(worst["pattern"], f"{worst['name']}.backward", record),
        where=worst["name"],
        line=worst["line"],
        since_step=0,
        status="possible" if meant else None,
        grade="exact",
    )


def _unseen(whole: ExamResult, alone: ExamResult) -> list[str]:
    """What the replay cannot look into and what alone could not be decided: its backward made the reference too."""
    tested = alone.values["functions"] if alone.done else []
    decided = {f["name"] for f in tested} - set(_undecided(tested))
    return [name for name in whole.values["opaque"] if name not in decided]


def _undecided(functions: Sequence[Mapping[str, Any]]) -> list[str]:
    """Those of which no test could say whether they are right."""
    unsure = ("undecided", "none")
    return [f["name"] for f in functions if f.get("outcome", f["test"]) in unsure]


def _by_differences(result: ExamResult | None, unseen: list[str]) -> Outcome:
    names = ", ".join(unseen[:3])
    if result is None:
        return backward_incorrect.not_judged(
            f"{names} could not be tested alone", wants="finite_difference"
        )
    if not result.done:
        return backward_incorrect.not_judged(
            f"{names} could not be tested: {result.reason}", wants=MODULE
        )
    values = result.values
    if values["outcome"] == "pass":
        own = ", for the part this rank computes itself" if values.get("joined") else ""
        return backward_incorrect.clear(
            f"the gradient agrees with finite differences of the loss{own}"
        )
    # A path that is cut on purpose moves the loss and has no gradient.
    if values["outcome"] == "undecided" or values["cut_paths"]:
        return backward_incorrect.not_judged(
            f"finite differences cannot tell whether {names} is right", wants=MODULE
        )
    return backward_incorrect.finding(
        _error("relative error of the gradient against finite differences of the loss", values),
        summary=(
            f"the gradient is not the derivative of the loss; autograd cannot see inside {names}"
        ),
        where=unseen[0],
        since_step=0,
        status="likely",
        wants=MODULE,
        grade="exact",
    )


def _passed(whole: ExamResult, differences: ExamResult | None) -> Outcome:
    """The replay agrees, and what it cannot look into passed alone, at its first call: other calls may be wrong."""
    if differences is not None and differences.done and differences.values["outcome"] == "wrong":
        if not differences.values["cut_paths"]:
            names = ", ".join(whole.values["opaque"][:3])
            return backward_incorrect.not_judged(
                (
                    f"the gradient is not the derivative of the loss, although {names} passes when "
                    "tested alone"
                ),
                wants=MODULE,
            )
    largest = whole.values["difference"]
    return backward_incorrect.clear(
        f"the gradient is that of autograd on the same step, to within {largest:.1e}"
    )


def _rest(record: Record, whole: ExamResult, alone: ExamResult) -> Outcome:
    values = whole.values
    if values["world_size"] > 1 and not values.get("local"):
        return backward_incorrect.not_judged("the gradients are averages over ranks")
    if values["hooked"]:
        return _hooked(values)
    functions = alone.values.get("functions", []) if alone.done else []
    meant = [f for f in functions if f.get("surrogate") or f.get("identity")]
    untested = [f["name"] for f in functions if f["test"] == "none" and f not in meant]
    if meant and not set(_undecided(functions)) - {f["name"] for f in meant}:
        return backward_incorrect.clear("the custom Functions change gradients on purpose")
    if not untested:
        reason = (
            "the gradient differs from autograd's on the same step, and no custom Function "
            "explains it"
        )
        return backward_incorrect.not_judged(reason, wants=MODULE)
    worst = values["worst"][0]
    return backward_incorrect.finding(
        _against_replay(values),
        summary=(
            f"{said(worst['pattern'], record, of=worst['name'])}; {untested[0]} could not be "
            "tested alone"
        ),
        where=untested[0],
        since_step=0,
        status="likely",
        wants=MODULE,
        grade="exact",
    )


def _hooked(values: Mapping[str, Any]) -> Outcome:
    """Hooks clip, scale, mask and reverse gradients on purpose; whatever for, something of the loss's must be left."""
    turned, wrong, hooks = values["turned"], values["wrong"], values["hooked"]
    if turned <= MOSTLY * wrong:
        return backward_incorrect.clear(
            f"the script's hooks change gradients on purpose ({hooks[0]})"
        )
    return backward_incorrect.finding(
        _against_replay(values),
        evidence("parameters whose gradient has next to nothing of the loss's", turned, 0),
        summary=(
            f"a gradient hook ({hooks[0]}) leaves next to nothing of the loss's gradient for {turned} "
            f"of {values['parameters']} parameters"
        ),
        remedy=(
            "A hook gets the gradient of its own value and must return one that belongs to it: no sum or "
            "value kept from another step, layer or batch. Take the hook out to see the difference."
        ),
        line=hooks[0] if ":" in hooks[0] else None,
        since_step=0,
        status="likely",
        grade="exact",
    )


def _in_module(
    record: Record, outcome: Outcome, result: ExamResult | None, alone: ExamResult
) -> Outcome:
    """A suspicion without an exact name gets that of the innermost module whose own gradient is wrong."""
    if isinstance(outcome, Clear | NotApplicable) or outcome.wants != MODULE or result is None:
        return outcome
    tested = alone.values["functions"] if alone.done else []
    meant = {f["name"] for f in tested if f.get("surrogate") or f.get("identity")}
    rows = result.values["wrong"] if result.done else []
    # Torch's own backward passes are right or, as in fake quantisation, meant to be what they are.
    guilty = next((row for row in rows if set(row["hand_written"]) - meant), None)
    if guilty is None:
        return replace(outcome, wants=None)
    names = ", ".join(name for name in guilty["hand_written"] if name not in meant)
    known = outcome.evidence if isinstance(outcome, Finding) else ()
    return backward_incorrect.finding(
        _error(
            f"relative error of {guilty['module']}'s gradient against finite differences",
            {**guilty, "step": result.values["step"]},
        ),
        *known,
        summary=(
            f"the backward pass in {guilty['module']} is wrong: {said(guilty['pattern'], record)} "
            f"({names}; by finite differences)"
        ),
        remedy=remedy(guilty["pattern"], f"the backward of {names}", record),
        where=guilty["module"],
        line=guilty["line"],
        since_step=0,
        grade="exact",
    )
