"""The update: decay, bias correction, rate, rule."""

from __future__ import annotations

import math

import numpy as np

from traindoctor.compare.kinds.base import Kind, Scene

NEAR = 0.02


def decay(scene: Scene) -> Kind | None:
    """The difference is a share of the weight itself."""
    if scene.entry.kind != "update":
        return None
    weight = scene.weight(scene.entry.name)
    if weight is None or not weight.any():
        return None
    weight = scene.closed(weight)
    apart = scene.b - scene.a
    found = float(np.vdot(weight, apart)) / float(np.vdot(weight, weight))
    if not found or not scene.explains(scene.a + found * weight):
        return None
    lr, wanted = scene.setting("lr"), scene.setting("weight_decay")
    told = f"{abs(found):.3g} of the weight"
    if lr and wanted and abs(abs(found) / (lr * wanted) - 1) < NEAR:
        told = f"rate x weight decay = {lr:g} x {wanted:g} of the weight"
        if found > 0:
            return Kind("decay", f"weight decay is missing in B: the update lacks {told}")
        return Kind("decay", f"B decays what A does not: the update has {told} more")
    direction = "lacks" if found > 0 else "has"
    return Kind("decay", f"the weight decay differs: B's update {direction} {told}")


def bias_correction(scene: Scene) -> Kind | None:
    """Adam's moments as they are, or only one of them corrected."""
    if scene.entry.kind != "update":
        return None
    beta1, beta2 = scene.setting("beta1"), scene.setting("beta2")
    if beta1 is None or beta2 is None:
        return None
    weight = scene.weight(scene.entry.name)
    lr, rate = scene.setting("lr") or 0.0, scene.setting("weight_decay") or 0.0
    for pulled in (0.0, lr * rate):
        if pulled and weight is None:
            continue
        term = -pulled * weight if pulled and weight is not None else np.zeros_like(scene.a)
        term = scene.closed(term)
        base, other = scene.a - term, scene.b - term
        square = float(np.vdot(base, base))
        if not square:
            continue
        found = float(np.vdot(base, other)) / square
        step = scene.entry.step + 1
        first, second = 1 - beta1**step, math.sqrt(1 - beta2**step)
        for expected, words in (
            (first / second, "neither moment is corrected for its start at 0"),
            (first, "the first moment is not corrected for its start at 0"),
            (1 / second, "the second moment is not corrected for its start at 0"),
        ):
            if abs(found / expected - 1) < NEAR and _near(scene, term + base * found):
                return Kind("bias-correction", f"{words} in B: the update is {found:.3g} times A's")
    return None


def _near(scene: Scene, guess: np.ndarray) -> bool:
    """Within the tolerance, or almost: where gradients are near Adam's eps the factor is not one number."""
    if scene.explains(guess):
        return True
    apart = np.linalg.norm(guess - scene.b)
    return bool(apart < NEAR * np.linalg.norm(scene.b - scene.a))
