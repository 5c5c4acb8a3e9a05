import numpy as np

from traindoctor.checks import laws
from traindoctor.checks.base import Outcome, check, evidence
from traindoctor.checks.consequences import NOT_LEARNING
from traindoctor.checks.gradient.base import SHARE, clipped_while_scaled
from traindoctor.record import Record

# Fewer steps with clipping may be a beginning that the script does otherwise.
STEPS = 8
# Share of the gradient that is in no optimizer's parameters: then those that are clipped are right, and the optimizer's are not.
ELSEWHERE = 0.5


@check(
    code="GRD007",
    slug="clip-ineffective",
    title="Gradients are clipped where it has no effect",
    law=laws.RULE,
    explains=("gradients-exploding", "fp16-overflow", *NOT_LEARNING),
)
def clip_ineffective(record: Record) -> Outcome:
    """
    ## What it does
    Follows the order of backward, unscale, clip and step, and whose gradients are clipped. An update by hand is a step:
    the weights move between the clip call and the next backward pass.
    ## Why it matters
    Clipping before backward, after the step or over an exhausted generator does nothing, and the run is as
    unprotected as without it. Before unscaling it cuts at the limit divided by the scaler's factor; Adam undoes that,
    and outliers are no longer told from other steps.
    ## How to fix
    The order is `backward()`, `scaler.unscale_(optimizer)` if there is a scaler, clip, `step()`. Give it
    `model.parameters()` afresh each time: a generator that was read once is empty.
    ## When it stays silent
    Clipping of parts one by one, or of some of the parameters on purpose. Where SGD steps along what was cut before
    unscaling, every step is far too short: that is clip-too-tight.
    """
    calls, seen = record.get("clip.in_time"), record.get("clip.calls")
    if calls is None or len(calls) < STEPS:
        if seen is not None and len(seen) >= STEPS and not seen.values.any():
            return clip_ineffective.not_applicable("the script does not clip")
        return clip_ineffective.not_judged(f"fewer than {STEPS} steps with clipping were seen")
    stepping = record.fact("optimizer.stepping") or {}
    if stepping.get("steps") == 0 and stepping.get("weights_changed") is False:
        return clip_ineffective.not_applicable("no step was made that clipping could act on")
    late = calls.where(lambda values: values == 0)
    if len(late) >= SHARE * len(calls):
        return clip_ineffective.finding(
            evidence(
                "clip calls between the last backward pass and the step",
                0,
                1,
                step=int(late.steps[0]),
            ),
            evidence(
                "share of steps with the call in the wrong place", len(late) / len(calls), 0.0
            ),
            summary=(
                "Clipping is called before backward or after the step, when this step's "
                "gradients are not there"
            ),
            remedy="Call it between the last `backward()` and `optimizer.step()`.",
            since_step=int(late.steps[0]),
            grade="exact",
        )
    covered = record.get("clip.coverage")
    if covered is not None and len(covered) and float(np.mean(covered.values == 0)) >= SHARE:
        coverage = record.fact("optimizer.coverage") or {}
        if coverage.get("missing") and float(coverage.get("missing_share") or 0.0) > ELSEWHERE:
            return clip_ineffective.clear("what gets gradients is clipped, and is in no optimizer")
        return clip_ineffective.finding(
            evidence("share of the optimizer's parameters that are clipped", 0.0, 1.0),
            summary=(
                "Clipping is given none of the optimizer's parameters: an exhausted generator, "
                "or another model's parameters"
            ),
            remedy="Pass `model.parameters()` afresh at each call: a generator is empty once it was read.",
            since_step=int(covered.steps[0]),
            grade="exact",
        )
    if (scaled := clipped_while_scaled(record)) is not None:
        if scaled.acts:
            return clip_ineffective.clear("clipping takes effect, and far too much of it")
        return clip_ineffective.finding(
            evidence("clip calls before `scaler.unscale_`", scaled.calls, 0),
            evidence("loss scale at that time", scaled.factor, 1.0),
            summary=(
                "Gradients are clipped while still multiplied by the loss scale "
                f"{scaled.factor:g}, so the effective limit is that much smaller"
            ),
            remedy="Call `scaler.unscale_(optimizer)` between `backward()` and clipping.",
            since_step=scaled.since,
            grade="exact",
        )
    return clip_ineffective.clear(
        "clipping is called between backward and step, on the optimizer's parameters"
    )
