from traindoctor.checks import laws
from traindoctor.checks.base import Outcome, check, evidence
from traindoctor.checks.consequences import TOO_SHORT
from traindoctor.checks.loss.base import crash_of
from traindoctor.record import Record

# Longer accumulations than this are not seen in practice.
BACKWARDS = 40
# A scaler skips a few steps while it looks for its factor, and one in thousands later.
SKIPPED_SHARE = 0.9
SKIPPED_STEPS = 20
# Steps looked at that find no gradient at all, all of them: one could be a frozen phase.
EMPTY_STEPS = 3


@check(
    code="OPT008",
    slug="optimizer-never-steps",
    title="Gradients are computed but no optimizer step uses them",
    law=laws.RULE,
    explains=(
        "missing-zero-grad",
        "gradients-exploding",
        "loss-scale-wrong",
        "batch-not-changing",
        "clip-ineffective",
        *TOO_SHORT,
    ),
)
def optimizer_never_steps(record: Record) -> Outcome:
    """
    ## What it does
    Counts backward passes and optimizer steps, and the steps that a GradScaler skips; looks whether there is a
    gradient left when `step` is called.
    ## Why it matters
    Everything runs, the loss is printed, and the weights stay as they were built.
    ## How to fix
    Call `optimizer.step()` in a branch that is reached: an accumulation counter must not start again before it
    is full. `zero_grad()` belongs before `backward()` or after `step()`, never between the two. With GradScaler,
    look at why gradients are never finite.
    ## When it stays silent
    Long accumulation that does end in a step, optimizers written by hand (the weights change), a scaler's
    first skipped steps. Steps that are left out because no gradient is finite, where the operation that makes them so
    is known.
    """
    if (maker := crash_of(record)) is not None and never_finite(record):
        return optimizer_never_steps.clear(
            f"no gradient is finite, which {maker.values['op']} brings about: steps are left out for that"
        )
    skipped = record.get("scaler.skipped")
    if skipped is not None and len(skipped) >= SKIPPED_STEPS:
        share = float((skipped.values > 0).mean())
        if share >= SKIPPED_SHARE:
            return optimizer_never_steps.finding(
                evidence("share of steps that the gradient scaler skipped", share, 0.0),
                summary=f"The gradient scaler skips {share:.0%} of the steps: gradients are never finite",
                remedy="Find the operation that overflows in float16 and compute it in float32, or use bfloat16.",
                since_step=int(skipped.steps[0]),
                grade="exact",
            )
    if (thrown := thrown_away(record)) is not None:
        return thrown
    steps = int(record.fact("run.steps", 0) or 0)
    stepping = record.fact("optimizer.stepping") or {}
    if steps or record.fact("optimizer.groups"):
        return optimizer_never_steps.clear("the optimizer steps")
    backwards = max(int(record.fact("run.backwards", 0) or 0), int(stepping.get("backwards", 0)))
    if backwards < BACKWARDS:
        return optimizer_never_steps.not_judged(f"only {backwards} backward passes were seen")
    if stepping.get("weights_changed"):
        return optimizer_never_steps.clear("the script updates its weights itself")
    if stepping.get("weights_changed") is None:
        return optimizer_never_steps.not_judged("the script may update its weights itself")
    return optimizer_never_steps.finding(
        evidence("optimizer steps", 0, f"at least one per {BACKWARDS} backward passes"),
        evidence("backward passes", backwards),
        summary=f"{backwards} backward passes and not one optimizer step: the weights never change",
        remedy="Call `optimizer.step()` in a branch that is reached: an accumulation counter must not start again before it is full.",
        since_step=0,
        grade="exact",
    )


def never_finite(record: Record) -> bool:
    """Not one gradient of the run was."""
    norms = record.get("grad.norm")
    return norms is not None and len(norms) > 0 and not len(norms.finite())


def thrown_away(record: Record) -> Outcome | None:
    """Backward gives a gradient and `step` finds none."""
    found, given = record.get("grad.norm_at_step"), record.get("grad.norm")
    if found is None or given is None or len(found) < EMPTY_STEPS:
        return None
    if found.values.any() or not given.finite().values.any():
        return None
    return optimizer_never_steps.finding(
        evidence("gradient norm when step is called", 0.0, given.finite().median()),
        evidence("gradient norm after backward", given.finite().median()),
        evidence("steps looked at", len(found)),
        summary=(
            "The gradient is gone when the optimizer steps: it is cleared between backward "
            "and step, so the weights never follow it"
        ),
        remedy="Move `zero_grad()` before `backward()` or after `step()`.",
        since_step=int(found.steps[0]),
        grade="exact",
    )
