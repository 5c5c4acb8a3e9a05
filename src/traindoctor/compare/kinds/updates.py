"""The update: decay, bias correction, rate, rule."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from traindoctor.compare.kinds.base import Array, Kind, Scene

NEAR = 0.02


def decay(scene: Scene) -> Kind | None:
    """The difference is a share of the weight itself."""
    weight = scene.weight(scene.entry.name)
    if weight is None or not weight.any():
        return None
    weight = scene.closed(weight)
    if not float(np.vdot(weight, weight)):
        return None
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


@dataclass(frozen=True)
class Rule:
    """SGD with momentum, or Adam: what an update is made of."""

    lr: float
    beta1: float = 0.0
    beta2: float | None = None
    """None: no second moment."""
    eps: float = 1e-8
    decay: float = 0.0
    decoupled: bool = True
    summed: bool = False
    """A momentum that adds up whole gradients, as SGD's does."""

    def update(self, scene: Scene) -> Array | None:
        """Of this step, from A's weights and gradients of all steps so far."""
        first: Array | float = 0.0
        second: Array | float = 0.0
        held: Array | float = 0.0
        for step in range(scene.entry.step + 1):
            given, weight = scene.get("gradient", scene.entry.name, step), scene.weight_at(step)
            if given is None or weight is None:
                return None
            held = weight
            if not self.decoupled:
                given = given + self.decay * weight
            first = self.beta1 * first + (1.0 if self.summed else 1 - self.beta1) * given
            if self.beta2 is not None:
                second = self.beta2 * second + (1 - self.beta2) * given**2
        count = scene.entry.step + 1
        move = np.asarray(first)
        if self.beta2 is not None:
            move = move / (1 - self.beta1**count)
            move = move / (np.sqrt(second / (1 - self.beta2**count)) + self.eps)
        pulled = self.decay * held if self.decoupled else 0.0
        return np.asarray(-self.lr * (move + pulled))


def rule(scene: Scene) -> Kind | None:
    """The optimizer's rule made again from the gradients, with one of its settings changed."""
    for own in _rules(scene):
        made = own.update(scene)
        if made is None:
            return None
        if not scene.is_a(made):
            continue
        for words, code, other in _variants(own):
            guess = other.update(scene)
            if guess is not None and scene.explains(guess):
                return Kind(code, f"{words} in B")
        return None
    return None


def _rules(scene: Scene) -> Iterator[Rule]:
    lr = scene.setting("lr")
    if lr is None:
        return
    beta1, beta2 = scene.setting("beta1"), scene.setting("beta2")
    wanted = scene.setting("weight_decay") or 0.0
    for decay_ in dict.fromkeys((wanted, 0.0)):
        if beta1 is not None and beta2 is not None:
            for decoupled in (True, False):
                eps = scene.setting("eps") or 1e-8
                yield Rule(lr, beta1, beta2, eps, decay_, decoupled)
        else:
            momentum = scene.setting("momentum") or 0.0
            yield Rule(lr, momentum, None, 0.0, decay_, decoupled=False, summed=True)


def _variants(own: Rule) -> Iterator[tuple[str, str, Rule]]:
    if own.beta2 is None:
        for other in (0.0, 0.9, 0.99):
            if other != own.beta1:
                words = f"the momentum is {other:g} instead of {own.beta1:g}"
                yield words, "momentum", replace(own, beta1=other)
        damped = replace(own, summed=False)
        yield "momentum averages gradients instead of adding them up", "momentum", damped
        return
    yield "beta1 and beta2 are exchanged", "betas", replace(own, beta1=own.beta2, beta2=own.beta1)
    for other in (0.999, 0.99, 0.98, 0.95):
        if other != own.beta2:
            words = f"beta2 is {other:g} instead of {own.beta2:g}"
            yield words, "betas", replace(own, beta2=other)
    for other in (0.0, 0.8, 0.9, 0.95):
        if other != own.beta1:
            words = f"beta1 is {other:g} instead of {own.beta1:g}"
            yield words, "betas", replace(own, beta1=other)
    if own.decay:
        how = "added to the gradient" if own.decoupled else "applied to the weight alone"
        yield f"weight decay is {how}", "decay", replace(own, decoupled=not own.decoupled)
    for other in (1e-3, 1e-4, 1e-5, 1e-6, 1e-7, 1e-8, 1e-10, 1e-15):
        if other != own.eps:
            words = f"the optimizer's eps is {other:g} instead of {own.eps:g}"
            yield words, "epsilon", replace(own, eps=other)
