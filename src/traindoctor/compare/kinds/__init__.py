"""What kind of difference it is: simple changes of A that give B within the tolerance, the plainest first."""

from collections.abc import Callable

import numpy as np

from traindoctor.compare.kinds import attention, layers, losses, sums, updates, whole
from traindoctor.compare.kinds.base import Kind, Scene

# (of which tensors, or of all; what is tried)
TRIED: tuple[tuple[str | None, Callable[[Scene], Kind | None]], ...] = (
    (None, whole.not_finite),
    (None, whole.zeros),
    (None, whole.shorter_dtype),
    ("update", updates.decay),
    ("update", updates.bias_correction),
    ("update", updates.rule),
    ("activation", sums.rows_of_a_table),
    ("activation", layers.linear),
    ("activation", layers.pointwise),
    ("activation", layers.norm_epsilon),
    (None, whole.cut),
    (None, whole.factor),
    (None, whole.axes),
    (None, whole.shifted),
    (None, losses.targets),
    ("loss", losses.value),
    ("activation", attention.attention),
    (None, whole.permuted),
    (None, sums.added),
    (None, sums.another_tensor),
    ("activation", sums.replaced),
    ("gradient", sums.part_of_the_rows),
    ("gradient", layers.linear_backward),
    ("gradient", layers.pointwise_backward),
    ("gradient", layers.norm_backward),
    ("gradient", attention.attention_backward),
    (None, whole.row_factors),
    (None, whole.tile),
)


def explain(scene: Scene) -> Kind | None:
    """The first that fits; None where no simple change explains B."""
    if scene.a.dtype.kind != "f" or scene.b.dtype.kind != "f":
        return None
    for kind, one in TRIED:
        # What follows computes with the numbers of A.
        if one is not whole.not_finite and not np.isfinite(scene.a).all():
            return None
        found = one(scene) if kind in (None, scene.entry.kind) else None
        if found is not None:
            return found
    return None
