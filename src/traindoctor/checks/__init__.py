"""The table of checks: one row per cause, family by family, in the order of the pages."""

from __future__ import annotations

from traindoctor.checks import (
    data,
    distributed,
    generalisation,
    generation,
    gradient,
    loss,
    model,
    numerics,
    optimizer,
    speed,
)
from traindoctor.checks.base import Check

FAMILIES: dict[str, tuple[Check, ...]] = {
    "data": data.CHECKS,
    "loss": loss.CHECKS,
    "gradient": gradient.CHECKS,
    "optimizer": optimizer.CHECKS,
    "model": model.CHECKS,
    "numerics": numerics.CHECKS,
    "generalisation": generalisation.CHECKS,
    "speed": speed.CHECKS,
    "generation": generation.CHECKS,
    "distributed": distributed.CHECKS,
}

CHECKS: tuple[Check, ...] = tuple(check for family in FAMILIES.values() for check in family)
BY_SLUG: dict[str, Check] = {check.slug: check for check in CHECKS}
