from __future__ import annotations

from traindoctor.checks.base import Outcome, check, evidence
from traindoctor.record import Record

# Longer accumulations than this are not seen in practice.
BACKWARDS = 40
# A scaler skips a few steps while it looks for its factor, and one in thousands later.
SKIPPED_SHARE = 0.9
SKIPPED_STEPS = 20


@check(
    code="OPT008",
    slug="optimizer-never-steps",
    title="Gradients are computed but the optimizer never steps",
)
def optimizer_never_steps(record: Record) -> Outcome | None:
    """
    ## What it does
    Counts backward passes and optimizer steps, and the steps that a GradScaler skips.
    ## Why it matters
    Everything runs, the loss is printed, and the weights stay as they were built.
    ## How to fix
    Call `optimizer.step()` in a branch that is reached: an accumulation counter must not start again before it
    is full. With GradScaler, look at why gradients are never finite.
    ## When it stays silent
    Long accumulation that does end in a step, optimizers written by hand (the weights change), a scaler's
    first skipped steps.
    """
    skipped = record.get("scaler.skipped")
    if skipped is not None and len(skipped) >= SKIPPED_STEPS:
        share = float((skipped.values > 0).mean())
        if share >= SKIPPED_SHARE:
            return optimizer_never_steps.finding(
                evidence("share of steps that the gradient scaler skipped", share, 0.0),
                summary=f"The gradient scaler skips {share:.0%} of the steps: gradients are never finite",
                since_step=int(skipped.steps[0]),
            )
    steps = int(record.fact("run.steps", 0) or 0)
    stepping = record.fact("optimizer.stepping") or {}
    if steps or record.has("optim.lr"):
        return optimizer_never_steps.clear("the optimizer steps")
    backwards = max(int(record.fact("run.backwards", 0) or 0), int(stepping.get("backwards", 0)))
    if backwards < BACKWARDS:
        return optimizer_never_steps.not_judged(f"only {backwards} backward passes were seen")
    if stepping.get("weights_changed") or stepping.get("weights_changed") is None:
        return optimizer_never_steps.not_judged("the script may change its weights itself")
    return optimizer_never_steps.finding(
        evidence("optimizer steps", 0, f"one in at most {BACKWARDS} backward passes"),
        evidence("backward passes", backwards),
        summary=f"{backwards} backward passes and not one optimizer step: the weights never change",
        since_step=0,
    )
