"""The loss and the gradient of the scores: other targets, a sum for a mean, places left out."""

from __future__ import annotations

import numpy as np

from traindoctor.compare.kinds.base import Array, Kind, Scene


def targets(scene: Scene) -> Kind | None:
    """The gradient of a cross entropy, made again from the scores, with the targets moved or some left out."""
    found = _scores_and_targets(scene)
    if found is None:
        return None
    scores, wanted = found
    share = np.exp(scores - scores.max(-1, keepdims=True))
    share /= share.sum(-1, keepdims=True)
    count = wanted.size

    def gradient(meant: Array, counted: Array | None = None) -> Array:
        made = share.copy()
        np.put_along_axis(
            made, meant[..., None], np.take_along_axis(made, meant[..., None], -1) - 1, -1
        )
        kept = np.ones(meant.shape) if counted is None else counted
        return np.asarray(
            made * kept[..., None] / max(1.0, kept.sum() if counted is not None else count)
        )

    if scene.entry.kind == "gradient" and scene.is_a(gradient(wanted)):
        for by in (1, -1):
            if scene.explains(gradient(np.roll(wanted, by, axis=-1))) or _but_ends(
                scene, gradient(np.roll(wanted, by, -1))
            ):
                return Kind(
                    "shift",
                    f"the targets are off by one in B: place t is asked for the target of t {-by:+d}",
                )
        last = np.ones(wanted.shape)
        last[..., -1] = 0
        for counted, words in ((last, "the last place of each row"),):
            if scene.explains(gradient(wanted, counted)):
                return Kind("rows", f"{words} is not counted in B")
        if scene.explains(share / count):
            return Kind(
                "missing-term", "the 1 at the target is not subtracted from the probabilities in B"
            )
    return None


def _but_ends(scene: Scene, guess: Array) -> bool:
    """A shift that does not wrap round: equal everywhere but at the ends of the rows."""
    inner = (slice(None), slice(1, -1))
    a, b = scene.a[inner], scene.b[inner]
    small = Scene(scene.entry, scene.a_trace, scene.b_trace, scene.tolerance)
    small.__dict__["a"], small.__dict__["b"] = a, b
    return bool(guess.ndim == 3 and guess.shape[1] > 3 and small.explains(guess[inner]))


def _scores_and_targets(scene: Scene) -> tuple[Array, Array] | None:
    scores = scene.get("activation", scene.entry.name)
    if scores is None or scores.ndim != 3:
        return None
    for entry in scene.a_trace.of_kind("input", scene.entry.step)[::-1]:
        values = entry.values()
        if entry.shape == scores.shape[:-1] and values.dtype.kind in "iu":
            if values.min() >= 0 and values.max() < scores.shape[-1]:
                return scores, values.astype(np.int64)
    return None
