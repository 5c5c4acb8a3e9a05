"""What kind of difference it is: simple changes of A that give B within the tolerance, the plainest first."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from traindoctor.compare.kinds import attention, layers, losses, sums, updates, whole
from traindoctor.compare.kinds.base import Kind, Scene

TRIED: tuple[Callable[[Scene], Kind | None], ...] = (
    whole.not_finite,
    whole.zeros,
    whole.shorter_dtype,
    updates.decay,
    updates.bias_correction,
    updates.rule,
    sums.rows_of_a_table,
    layers.linear,
    layers.pointwise,
    layers.norm_epsilon,
    whole.cut,
    whole.factor,
    whole.axes,
    whole.shifted,
    losses.targets,
    losses.value,
    attention.attention,
    whole.permuted,
    sums.added,
    sums.another_tensor,
    sums.replaced,
    sums.part_of_the_rows,
    layers.linear_backward,
    layers.pointwise_backward,
    layers.norm_backward,
    attention.attention_backward,
    whole.row_factors,
    whole.tile,
)


def explain(scene: Scene) -> Kind | None:
    """The first that fits; None where no simple change explains B."""
    if scene.a.dtype.kind != "f" or scene.b.dtype.kind != "f":
        return None
    for one in TRIED:
        # What follows computes with the numbers of A.
        if one is not whole.not_finite and not np.isfinite(scene.a).all():
            return None
        found = one(scene)
        if found is not None:
            return found
    return None
