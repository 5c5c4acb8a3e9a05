"""Causal attention computed again from the queries, keys and values that both sides share, with one thing changed.

B batch, H heads, T places, S head size, C width.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from traindoctor.compare.kinds.base import Array, Kind, Scene

# Scores that are computed for an explanation; of a larger step the first rows of the batch are enough.
MOST_SCORES = 1 << 23
Mask = Literal["causal", "none", "next", "strict", "future"]
ROTARY_BASES = (10000.0, 100.0, 1000.0, 50000.0, 500000.0, 1e6)


@dataclass(frozen=True)
class Attention:
    """One way to attend."""

    heads: int
    scale: float
    mask: Mask
    over: Literal["keys", "queries"] = "keys"
    rotary: Literal["none", "halves", "pairs"] = "none"
    base: float = ROTARY_BASES[0]
    shared: Literal["neighbours", "far"] = "neighbours"
    """Which query heads share a head of keys, where these are fewer."""
    split: Literal["outer", "inner"] = "outer"
    merged: Literal["heads", "inner", "untransposed"] = "heads"

    def parts(self, x: Array, size: int) -> Array:
        """(B, T, n S) as (B, H, T, S): fewer heads of keys and values are used several times."""
        B, T, width = x.shape
        count = width // size
        if self.split == "inner":
            made = x.reshape(B, T, size, count).transpose(0, 3, 1, 2)
        else:
            made = x.reshape(B, T, count, size).transpose(0, 2, 1, 3)
        if count == self.heads:
            return made
        again = self.heads // count
        return (
            np.repeat(made, again, 1)
            if self.shared == "neighbours"
            else np.tile(made, (1, again, 1, 1))
        )

    def weights(self, q: Array, k: Array) -> Array:
        T = q.shape[2]
        score = q @ k.swapaxes(-1, -2) * self.scale  # (B, H, T, T)
        row, column = np.indices((T, T))
        allowed = {
            "causal": column <= row,
            "none": column >= 0,
            "next": column <= row + 1,
            # The first place would see nothing: who masks so lets it see itself.
            "strict": (column < row) | ((row == 0) & (column == 0)),
            "future": column >= row,
        }[self.mask]
        score = np.where(allowed, score, -np.inf)
        axis = -1 if self.over == "keys" else -2
        top = score.max(axis, keepdims=True)
        value = np.exp(score - np.where(np.isfinite(top), top, 0))
        total = value.sum(axis, keepdims=True)
        return np.asarray(value / np.where(total > 0, total, 1))

    def turned(self, x: Array) -> Array:
        """Rotary positions."""
        if self.rotary == "none":
            return x
        T, S = x.shape[-2:]
        angle = np.outer(np.arange(T), self.base ** -(np.arange(0, S, 2) / S))
        cos, sin = np.cos(angle), np.sin(angle)
        pairs = self.rotary == "pairs"
        first, second = (
            (x[..., ::2], x[..., 1::2]) if pairs else (x[..., : S // 2], x[..., S // 2 :])
        )
        one, two = first * cos - second * sin, second * cos + first * sin
        if pairs:
            return np.stack((one, two), axis=-1).reshape(x.shape)
        return np.concatenate((one, two), axis=-1)

    def forward(self, q: Array, k: Array, v: Array) -> Array:
        """(B, T, C) each."""
        B, T, C = q.shape
        queries, keys, values = (self.parts(x, C // self.heads) for x in (q, k, v))
        mixed = self.weights(self.turned(queries), self.turned(keys)) @ values  # (B, H, T, S)
        order = {"heads": (0, 2, 1, 3), "inner": (0, 2, 3, 1), "untransposed": (0, 1, 2, 3)}
        return mixed.transpose(order[self.merged]).reshape(B, T, C)


def attention(scene: Scene) -> Kind | None:
    """What attention mixes: another scale, mask, axis, split into heads."""
    if scene.a.ndim != 3 or not scene.whole:
        return None
    for name, (q, k, v) in _queries_keys_values(scene):
        rows = max(1, MOST_SCORES // max(1, q.shape[1] ** 2 * 4))
        small = _first_rows(scene, rows)
        q, k, v = q[:rows], k[:rows], v[:rows]
        for own in _ways(scene, q.shape[-1], k.shape[-1]):
            if not small.is_a(own.forward(q, k, v)):
                continue
            for words, code, other in _variants(own, q.shape[-1]):
                if small.explains(other.forward(q, k, v)):
                    return Kind(code, f"in the attention after {name} {words} in B")
            for words, order in (
                ()
                if k.shape != q.shape
                else (
                    ("k and q", (k, q, v)),
                    ("k and v", (q, v, k)),
                    ("q and v", (v, k, q)),
                )
            ):
                if small.explains(own.forward(*order)):
                    return Kind("permutation", f"{words} of {name} have changed places in B")
    return None


def _first_rows(scene: Scene, rows: int) -> Scene:
    if len(scene.a) <= rows:
        return scene
    small = replace(scene)
    small.__dict__["a"], small.__dict__["b"] = scene.a[:rows], scene.b[:rows]
    return small


def _ways(scene: Scene, width: int, keys: int) -> Iterator[Attention]:
    """The usual ones, to find A's own."""
    told = scene.setting("heads")
    counts = (
        [int(told)]
        if told and width % int(told) == 0
        else [n for n in range(1, 129) if width % n == 0]
    )
    for heads in counts:
        size = width // heads
        if keys % size or heads % max(1, keys // size):
            continue
        for rotary in ("none", "halves", "pairs") if size % 2 == 0 else ("none",):
            for mask in ("causal", "none"):
                for base in ROTARY_BASES if rotary != "none" else ROTARY_BASES[:1]:
                    yield Attention(heads, 1 / math.sqrt(size), mask, rotary=rotary, base=base)


def _variants(own: Attention, width: int) -> Iterator[tuple[str, str, Attention]]:
    size = width // own.heads
    yield "the scores are not scaled by 1 / sqrt(head size)", "scale", replace(own, scale=1.0)
    if own.heads > 1:
        yield (
            "the scores are scaled by 1 / sqrt(width) instead of the head size",
            "scale",
            replace(own, scale=1 / math.sqrt(width)),
        )
    yield (
        "the scores are divided by the head size, not by its root",
        "scale",
        replace(own, scale=1 / size),
    )
    words: dict[Mask, str] = {
        "none": "the causal mask is missing",
        "causal": "a causal mask is applied",
        "next": "the mask lets each place see the next one",
        "strict": "the mask hides each place from itself",
        "future": "the mask is the wrong way round",
    }
    for mask, sentence in words.items():
        if mask != own.mask:
            yield sentence, "mask", replace(own, mask=mask)
    yield (
        "the softmax runs over the queries instead of the keys",
        "axis",
        replace(own, over="queries"),
    )
    yield (
        "the heads are not transposed back before they are merged",
        "permutation",
        replace(own, merged="untransposed"),
    )
    yield (
        "the heads are merged as (head size, heads) instead of (heads, head size)",
        "permutation",
        replace(own, merged="inner"),
    )
    yield "the heads are cut from the inner dimension", "permutation", replace(own, split="inner")
    for base in ROTARY_BASES if own.rotary != "none" else ():
        if base != own.base:
            words_of_base = f"the base of the rotary positions is {base:g} instead of {own.base:g}"
            yield words_of_base, "rotary", replace(own, base=base)
    yield (
        "query head h takes the keys of head h mod n instead of its neighbours'",
        "permutation",
        replace(own, shared="far"),
    )
    for rotary in ("none", "halves", "pairs"):
        if rotary != own.rotary:
            how = {"none": "missing", "halves": "by halves", "pairs": "by neighbouring pairs"}[
                rotary
            ]
            yield f"rotary positions are {how}", "rotary", replace(own, rotary=rotary)


def _queries_keys_values(scene: Scene) -> Iterator[tuple[str, tuple[Array, Array, Array]]]:
    """One fused output of three widths, or three outputs."""
    width = scene.entry.shape[-1]
    before = [
        e
        for e in scene.earlier("activation")
        if e.step == scene.entry.step and e.shape[:-1] == scene.entry.shape[:-1]
    ]
    for entry in before[:6]:
        rest = entry.shape[-1] - width
        if rest > 0 and rest % 2 == 0 and rest <= 2 * width:
            q, k, v = np.split(entry.values(), [width, width + rest // 2], axis=-1)
            yield entry.name, (q, k, v)
    if (
        len(before) >= 3
        and before[2].shape == scene.entry.shape
        and before[0].shape == before[1].shape
    ):
        v, k, q = (e.values() for e in before[:3])
        yield before[2].name, (q, k, v)


def attention_backward(scene: Scene) -> Kind | None:
    """The gradient of the fused queries, keys and values."""
    if scene.a.ndim != 3 or not scene.whole:
        return None
    held = scene.get("activation", scene.entry.name)
    if held is None or held.shape[-1] % 3:
        return None
    q, k, v = np.split(held, 3, axis=-1)
    rows = max(1, MOST_SCORES // max(1, q.shape[1] ** 2 * 4))
    small = _first_rows(scene, rows)
    q, k, v = q[:rows], k[:rows], v[:rows]
    for entry in scene.earlier("gradient"):
        if entry.step != scene.entry.step or entry.shape != (*held.shape[:-1], held.shape[-1] // 3):
            continue
        given = entry.values()[:rows]
        for own in _ways(scene, q.shape[-1], k.shape[-1]):
            if own.rotary != "none" or not small.is_a(_backward(own, q, k, v, given)):
                continue
            for words, code, options in (
                ("the gradient of the scores is not scaled", "scale", {"scaled": False}),
                ("the derivative of the softmax lacks its sum", "missing-term", {"summed": False}),
                ("the gradient of the scores is not masked", "mask", {"masked": False}),
            ):
                if small.explains(_backward(own, q, k, v, given, **options)):
                    return Kind(code, f"in the attention after {scene.entry.name} {words} in B")
        return None
    return None


def _backward(
    own: Attention,
    q: Array,
    k: Array,
    v: Array,
    given: Array,
    *,
    scaled: bool = True,
    summed: bool = True,
    masked: bool = True,
) -> Array:
    queries, keys, values, back = (own.parts(x, q.shape[-1] // own.heads) for x in (q, k, v, given))
    weight = own.weights(queries, keys)
    d_weight = back @ values.swapaxes(-1, -2)
    inner = d_weight - (d_weight * weight).sum(-1, keepdims=True) if summed else d_weight
    d_score = (
        (weight if masked else np.maximum(weight, 1e-3)) * inner * (own.scale if scaled else 1.0)
    )
    parts = (d_score @ keys, d_score.swapaxes(-1, -2) @ queries, weight.swapaxes(-1, -2) @ back)
    B, H, T, S = parts[0].shape
    return np.concatenate([p.transpose(0, 2, 1, 3).reshape(B, T, H * S) for p in parts], axis=-1)
