from collections.abc import Mapping
from typing import Any

from traindoctor.checks import laws
from traindoctor.checks.base import Finding, Outcome, check, done_exam, evidence
from traindoctor.checks.consequences import NOT_LEARNING
from traindoctor.checks.loss.base import (
    asked,
    crash_of,
    located,
    not_finite_from,
    not_known_finite,
    place,
)
from traindoctor.record import ExamResult, Record

# GradScaler finds its level within the first steps and then skips one step in a thousand.
WARM = 20
SKIPPED = 0.2
# Fewer steps behind the first ones tell nothing of a habit.
LEAST_STEPS = 10


@check(
    code="NUM001",
    slug="fp16-overflow",
    title="Values leave the range of float16",
    law=laws.MAKER,
    undecided="the first infinite value could not be traced to an operation",
    explains=("nan-from-op", *NOT_LEARNING),
)
def fp16_overflow(record: Record) -> Outcome:
    """
    ## What it does
    Looks for the first non-finite value of the run: made in float16 from finite input, also where it is swallowed
    again (1 / infinity is 0). And counts the steps that a GradScaler skips once it has had time to find its level.
    ## Why it matters
    float16 ends at 65504: an attention score, a sum of squares or a scaled gradient beyond it is infinite, and the
    step is lost or the weights are.
    ## How to fix
    bfloat16 has the range of float32; else compute the op that is named in float32 (softmax, norms, logits, losses),
    and let GradScaler lower its scale.
    ## When it stays silent
    The skipped steps with which a GradScaler begins, and an occasional one later.
    """
    crash = crash_of(record)
    if crash is not None and crash.values.get("dtype") == "float16":
        return _out_of_range(crash.values)
    half = done_exam(record, "half_gradients")
    if half is not None and half.values.get("overflow"):
        return _infinite_inside(half)
    skipped = record.get("scaler.skipped")
    if skipped is not None and len(skipped) > WARM + LEAST_STEPS:
        late = skipped.after(int(skipped.steps[WARM]))
        share = float(late.values.mean())
        if share > SKIPPED:
            # Never waited for: a log without exams shows the skipped steps as well.
            start = _starts(done_exam(record, "precision_ladder"))
            return fp16_overflow.finding(
                evidence(
                    "share of steps that the scaler skips",
                    share,
                    0.0,
                    noise=0.01,
                    step=int(late.steps[0]),
                ),
                grade="statistic",
                summary=f"{share:.0%} of the steps are skipped: gradients overflow at every scale"
                + (f"; in float16 it starts in {start['op']}" if start else ""),
                where=start["module"] or None if start else None,
                line=start["line"] if start else None,
                since_step=int(late.steps[0]),
            )
        return fp16_overflow.clear(f"{share:.1%} of the steps skipped by the scaler")
    if not_finite_from(record) is None:
        if (unknown := not_known_finite(record)) is not None:
            return fp16_overflow.not_judged(unknown)
        return fp16_overflow.clear("loss and gradients stayed finite")
    if not asked(record):
        return fp16_overflow.not_judged("the run broke", wants="first_nonfinite")
    if crash is None:
        return fp16_overflow.not_judged("the first non-finite value could not be traced")
    return fp16_overflow.clear(f"the first non-finite value is {crash.values['dtype']}")


def _out_of_range(values: Mapping[str, Any]) -> Finding:
    backward = values.get("phase") == "backward"
    what = "gradients of inputs" if backward else "results"
    subject = f"the backward pass of {values['op']}" if backward else values["op"]
    top = max((i["max"] or 0.0 for i in values["inputs"]), default=0.0)
    return fp16_overflow.finding(
        evidence(f"non-finite {what} of {values['op']}", values["count"], 0, step=values["step"]),
        evidence("largest input", top, "results under 65504", step=values["step"]),
        summary=f"{subject} at {place(values)} leaves the range of float16 at step {values['step']}",
        **located(values),
        grade="exact",
    )


def _infinite_inside(half: ExamResult) -> Finding:
    """The loss stays finite, but a value on the way to it does not."""
    found = half.values["overflow"]
    where = f" at {found['line']}" if found["line"] else ""
    return fp16_overflow.finding(
        evidence(f"infinite results of {found['op']}", found["count"], 0, step=half.step),
        evidence("largest input", found["largest"], "results under 65504", step=half.step),
        summary=(
            f"{found['op']}{where} leaves the range of float16; later operations hide the infinity"
        ),
        where=found["module"] or None,
        line=found["line"],
        since_step=int(half.values["step"]),
        grade="exact",
    )


def _starts(ladder: ExamResult | None) -> dict[str, Any] | None:
    """The first op, or the gradient, that leaves float16 when the whole step is computed in it."""
    if ladder is None:
        return None
    found = ladder.values["rungs"].get("float16", {}).get("overflow")
    return dict(found) if found else None
