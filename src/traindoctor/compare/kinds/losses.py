"""The loss and the gradient of the scores: other targets, a sum for a mean, places left out."""

from itertools import islice

import numpy as np

from traindoctor.compare.kinds.base import Array, Kind, Scene


def targets(scene: Scene) -> Kind | None:
    """The gradient of a cross entropy, made again from the scores, with the targets moved or some left out."""
    found = _scores_and_targets(scene)
    if found is None:
        return None
    scores, wanted, kept = found
    if not kept.all():
        return None
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
            ends = np.ones(wanted.shape)
            ends[..., -1 if by < 0 else 0] = 0
            if scene.explains(gradient(np.roll(wanted, by, axis=-1), ends)) or _but_ends(
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


def value(scene: Scene) -> Kind | None:
    """The loss made again from the scores: which places it counts, and how it takes their mean."""
    for entry in islice(scene.earlier("activation"), 4):
        found = _with_targets(scene, entry.values())
        if found is None:
            continue
        scores, wanted, kept = found
        top = scores.max(-1, keepdims=True)
        share = scores - top - np.log(np.exp(scores - top).sum(-1, keepdims=True))

        def mean(meant: Array, counted: Array, share: Array = share) -> Array:
            each = -np.take_along_axis(share, meant[..., None], -1)[..., 0]
            return np.asarray((each * counted).sum() / max(1.0, counted.sum()))

        if not scene.is_a(mean(wanted, kept)):
            continue
        last = kept.copy()
        last[..., -1] = 0
        rows = kept.sum(-1)
        row_means = np.asarray(
            np.mean([mean(wanted[i], kept[i], share[i]) for i in np.flatnonzero(rows)])
        )
        for guess, code, words in (
            (mean(wanted, last), "rows", "the last place of each row is not counted in B"),
            (mean(np.roll(wanted, -1, -1), last), "shift", "the targets are off by one in B"),
            (
                mean(np.roll(wanted, 1, -1), np.roll(last, 1, -1)),
                "shift",
                "the targets are off by one in B",
            ),
            (mean(np.roll(wanted, -1, -1), kept), "shift", "the targets are off by one in B"),
            (mean(np.roll(wanted, 1, -1), kept), "shift", "the targets are off by one in B"),
            (
                mean(wanted, np.ones(kept.shape)),
                "rows",
                "targets that are to be ignored are counted in B",
            ),
            (row_means, "mean", "B takes the mean of the rows' means, A the mean over all targets"),
        ):
            if scene.explains(guess):
                return Kind(code, words)
    return None


def _scores_and_targets(scene: Scene) -> tuple[Array, Array, Array] | None:
    scores = scene.get("activation", scene.entry.name)
    return None if scores is None else _with_targets(scene, scores)


def _with_targets(scene: Scene, scores: Array) -> tuple[Array, Array, Array] | None:
    """The scores (B, T, V), the targets (B, T), and 1 where a target counts."""
    if scores.ndim != 3:
        return None
    for entry in scene.a_trace.of_kind("input", scene.entry.step)[::-1]:
        values = entry.values()
        if entry.shape == scores.shape[:-1] and values.dtype.kind in "iu":
            if values.max() < scores.shape[-1]:
                kept = (values >= 0).astype(np.float64)
                return scores, np.maximum(values, 0).astype(np.int64), kept
    return None
