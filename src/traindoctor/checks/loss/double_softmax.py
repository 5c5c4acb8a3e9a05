from collections.abc import Mapping
from typing import Any

from traindoctor.checks import laws
from traindoctor.checks.base import Finding, Outcome, check, evidence, wanted_exam
from traindoctor.checks.consequences import TOO_SHORT
from traindoctor.record import Record

# So many rows that all sum to 1 are no accident, on any step.
MIN_ROWS = 4
# Without a softmax in sight two steps must agree, or this many rows of one.
MIN_STEPS, MANY_ROWS = 2, 32
# Losses that take the logarithm of probabilities.
LOGARITHMS = frozenset({"nll_loss", "ctc_loss"})
SQUASHING = frozenset({"softmax", "_softmax", "sigmoid", "div", "__truediv__"})


@check(
    code="LOS003",
    slug="double-softmax",
    title="The loss function is given probabilities where it expects logits",
    wants=["loss_input"],
    law=laws.INPUT,
    explains=("gradients-vanishing", *TOO_SHORT),
    urgent=True,
)
def double_softmax(record: Record) -> Outcome:
    """
    ## What it does
    Looks at what enters each loss on several steps: rows that are not negative and sum to 1 are probabilities. The
    same for every softmax on the way to the loss or to its targets (a teacher's scores that are none).
    ## Why it matters
    `F.cross_entropy` applies a log-softmax itself. A softmax before it squeezes all logits into 0..1: the loss
    cannot fall under about ln(1 + (C-1)/e), and gradients are tiny.
    ## How to fix
    Hand logits to `F.cross_entropy` and `binary_cross_entropy_with_logits`, log-probabilities to `F.nll_loss`
    and `F.ctc_loss`.
    ## When it stays silent
    Log-probabilities into cross_entropy (a log-softmax of a log-softmax is itself), `nll_loss` after a
    log-softmax, `binary_cross_entropy` after a sigmoid.
    """
    result = wanted_exam(record, "loss_input")
    for site in (*result.values["sites"], *result.values.get("alignments", ())):
        said = _wrong(site)
        if said is not None:
            return _given(site, said, result.step)
    for crossed in result.values.get("crossed", ()):
        return double_softmax.finding(
            evidence(
                "axis over which the probabilities sum to 1",
                crossed["axis"],
                crossed["classes"],
                step=result.step,
            ),
            summary=(
                f"{crossed['op']} gets log-probabilities that are normalised over axis "
                f"{crossed['axis']}, not over the classes"
            ),
            remedy=(
                f"Apply log_softmax over the classes, axis {crossed['classes']} of what "
                f"{crossed['op']} gets."
            ),
            line=crossed["line"],
            since_step=0,
            grade="exact",
        )
    for again in result.values.get("softmaxes", ()):
        return double_softmax.finding(
            evidence(
                "rows given to softmax that already sum to 1",
                again["rows"],
                0,
                step=result.step,
            ),
            evidence("sum of each row", again["sum"], "no two the same"),
            summary=f"{again['op']} at {again['line']} gets probabilities: softmax is applied twice",
            remedy="Apply softmax once: pass scores, not probabilities, to this one.",
            where=again["module"],
            line=again["line"],
            since_step=0,
            grade="exact",
        )
    return double_softmax.clear("the loss function gets the kind of input it expects")


def _given(site: Mapping[str, Any], said: str, step: int) -> Finding:
    made = site["made_by"] or {}
    return double_softmax.finding(
        evidence("rows given to the loss that already sum to 1", site["finite_rows"], 0, step=step),
        evidence("steps looked at", site["steps"]),
        evidence("produced by", made.get("op"), "a linear layer"),
        summary=f"{site['kind']} gets {said} ({made.get('line') or site['line']})",
        remedy=_change(site["kind"], said, made.get("op"), made.get("line")),
        where=made.get("module"),
        line=made.get("line") or site["line"],
        since_step=0,
        grade="exact",
    )


def _change(kind: str, said: str, made: str | None, line: str | None) -> str | None:
    """For what was found; None where nothing more special can be said than for all."""
    if not said.endswith("twice"):
        return (
            "Give `F.nll_loss` the result of `log_softmax`, or use `F.cross_entropy` on the logits."
            if kind == "nll_loss"
            else f"Give `F.{kind}` the result of `log_softmax`."
        )
    if made is None or line is None:
        return None
    return f"Remove the {made} at {line} and pass the logits: the loss applies it itself."


def _wrong(site: Mapping[str, Any]) -> str | None:
    kind, made = str(site["kind"]), (site["made_by"] or {}).get("op")
    if site["finite_rows"] < MIN_ROWS:
        return None
    sure = made in SQUASHING or site["steps"] >= MIN_STEPS or site["finite_rows"] >= MANY_ROWS
    logits = kind.startswith(("cross_entropy", "log_softmax", "logsumexp", "softmax"))
    if logits and site["probabilities"] and sure:
        return "probabilities: softmax is applied twice"
    if kind in LOGARITHMS and sure:
        if site["probabilities"]:
            return "probabilities: their logarithm is missing"
        if not site["log_probabilities"] and (site["highest"] or 0) > 0:
            return "values that are not log-probabilities"
    if kind == "binary_cross_entropy_with_logits" and site["between_0_and_1"] and made == "sigmoid":
        return "probabilities: sigmoid is applied twice"
    return None
