"""Gradients of earlier steps are still there."""

from __future__ import annotations

from traindoctor.checks.base import Outcome, check, evidence
from traindoctor.record import Record

# A resumed script may start once with old gradients; nine steps in ten is a habit.
SHARE = 0.9
# Rounding of a gradient that was set to zero by hand stays far below.
DIRTY = 1e-12


@check(
    code="GRD001",
    slug="missing-zero-grad",
    title="Gradients are not cleared between optimizer steps",
    needs=["grad.leftover_norm"],
    min_steps=3,
    since="0.1",
)
def missing_zero_grad(record: Record) -> Outcome | None:
    """
    ## What it does
    Reads the norm of `.grad` at the first backward pass after each optimizer step: None or 0 when all is well.
    ## Why it matters
    Old gradients add up: each step follows a sum over the past, and the loss swings or diverges.
    ## How to fix
    Call `optimizer.zero_grad()` once per optimizer step, before the first backward pass.
    ## When it stays silent
    Several backward passes before one step are accumulation, not a fault. With several optimizers (GANs) one
    network's gradients may lie about while the other learns: only a possible cause there.
    """
    leftover = record["grad.leftover_norm"].after(
        1
    )  # before the first step there is nothing to clear
    if len(leftover) < 2:
        return missing_zero_grad.not_judged("too few steps")
    dirty = leftover.where(lambda norm: ~(norm <= DIRTY))
    if len(dirty) < SHARE * len(leftover):
        share = len(dirty) / len(leftover)
        return missing_zero_grad.clear(f".grad clean before {1 - share:.0%} of the steps")
    several = len(record.fact("optimizer.groups") or []) > 1
    return missing_zero_grad.finding(
        evidence("norm of .grad left over before backward", dirty, 0.0),
        evidence("steps with old gradients", f"{len(dirty)} of {len(leftover)}", "none"),
        summary=f"old gradients lie in .grad at the first backward pass of {len(dirty)} of {len(leftover)} steps",
        since_step=int(dirty.steps[0]),
        status="possible" if several else None,
    )
