"""Differences of a whole tensor: another dtype, a factor, other axes, other places."""

import math
from itertools import permutations

import numpy as np

from traindoctor.compare.kinds.base import Array, Kind, Scene, numbers_of
from traindoctor.compare.tolerance import Distance, distance

# A factor is a simple number where it is this close to one: far nearer than any two candidates lie to each other.
CLOSE = 1e-3
# And it is one where it leaves less than this of the difference.
CLEARER = 1 / 3
# A stretch is wrong where what differs outside of it is less than this of what differs within.
OUTSIDE = 0.1


def not_finite(scene: Scene) -> Kind | None:
    odd = ~np.isfinite(scene.b)
    if not odd.any() or not np.isfinite(scene.a).all():
        return None
    what = "NaN" if np.isnan(scene.b).any() else "infinite"
    if not odd.ndim:
        return Kind("not-finite", f"it is {what} in B")
    first = tuple(int(i[0]) for i in np.nonzero(odd))
    return Kind(
        "not-finite", f"{odd.sum()} of {odd.size} numbers are {what} in B, the first at {first}"
    )


def zeros(scene: Scene) -> Kind | None:
    if scene.b.any() or not scene.a.any():
        return None
    what = {"update": "the weight does not move in B", "gradient": "no gradient arrives in B"}
    return Kind("zero", what.get(scene.entry.kind, "all zeros in B"))


def shorter_dtype(scene: Scene) -> Kind | None:
    """B is A rounded, to the last bit of the shorter dtype."""
    if scene.entry.dtype in ("bfloat16", "float16"):
        return None
    sizes = np.abs(scene.b[scene.b != 0])
    fits = not sizes.size or (sizes.max() <= 65504 and sizes.min() >= 2.0**-14)
    for name, bits in (("bfloat16", 8), ("float16" if fits else "TF32", 11)):
        if np.array_equal(rounded(scene.b, bits), scene.b):
            near = np.abs(scene.b - scene.a) <= 2.0**-bits * np.abs(scene.a) * 1.01 + 1e-30
            if near.mean() > 0.99:
                return Kind("dtype", f"B has A's numbers rounded to {name}")
    return None


def rounded(values: Array, bits: int) -> Array:
    """To so many bits of mantissa."""
    mantissa, exponent = np.frexp(values)
    return np.asarray(np.ldexp(np.round(mantissa * 2**bits) / 2**bits, exponent))


def factor(scene: Scene) -> Kind | None:
    a, b = scene.a.ravel(), scene.b.ravel()
    square = float(a @ a)
    if not square:
        return None
    found = float(a @ b) / square
    if not found or not scene.explains(scene.a * found):
        return None
    apart = np.linalg.norm(b - a * found), np.linalg.norm(b - a)
    if apart[0] > CLEARER * apart[1]:
        return None
    named = _named(found, scene)
    if scene.a.size == 1 and not named:
        return None  # one number is always another times something
    return Kind("factor", f"B is A times {_number(found)}{named}")


def _number(value: float) -> str:
    return f"{value:.0f}" if abs(value - round(value)) < CLOSE * abs(value) else f"{value:.4g}"


def _named(found: float, scene: Scene) -> str:
    if abs(found + 1) < CLOSE:
        return ": the sign is wrong"
    size = abs(found)
    numbers = numbers_of(scene.a_trace)
    for candidate, power, words in (
        (size, 1, "{}: a sum where A has a mean"),
        (1 / size, 1, "1 / {}: a mean where A has a sum"),
        (size**2, 2, "the square root of {}"),
        (1 / size**2, 2, "1 / the square root of {}"),
    ):
        near = round(candidate)
        if near > 1 and near in numbers and abs(candidate - near) < power * CLOSE * near:
            name = words.format(f"{near} ({numbers[near]})")
            return f" = {name}" if power == 1 or near > 4 else ""
    return ""


def axes(scene: Scene) -> Kind | None:
    """Transposed, or laid out in another order of the dimensions."""
    if not scene.whole or scene.a.ndim < 2 or scene.a.ndim > 5:
        return None
    for order in permutations(range(scene.a.ndim)):
        if order != tuple(range(scene.a.ndim)):
            turned = scene.a.transpose(order)
            if scene.explains(np.ascontiguousarray(turned).reshape(scene.a.shape)):
                two = scene.a.ndim == 2
                words = "transposed" if two else f"with its dimensions in the order {order}"
                return Kind("transposition", f"B is A {words}")
    return None


def permuted(scene: Scene) -> Kind | None:
    """Blocks of the last dimension (heads), or its single columns, in another order."""
    width = scene.a.shape[-1] if scene.a.ndim else 0
    if width < 2:
        return None
    heads = scene.setting("heads")
    counts = [int(heads)] if heads else []
    counts += [n for n in (2, 3, 4, 6, 8, 12, 16, 32) if n not in counts]
    for count in [n for n in counts if width % n == 0 and 1 < n < width]:
        found = _order(scene, count)
        if found is not None:
            what = "heads" if count == heads else f"blocks of {width // count} columns"
            return Kind("permutation", f"the {what} stand in another order in B: {found}")
    found = _order(scene, width)
    if found is not None:
        shown = ", ".join(map(str, found[:8])) + (", ..." if width > 8 else "")
        return Kind("permutation", f"the columns stand in another order in B: {shown}")
    return None


def _order(scene: Scene, count: int) -> list[int] | None:
    rows = scene.a.reshape(-1, count, scene.a.shape[-1] // count).swapaxes(0, 1).reshape(count, -1)
    others = (
        scene.b.reshape(-1, count, scene.a.shape[-1] // count).swapaxes(0, 1).reshape(count, -1)
    )
    norms = np.linalg.norm(rows, axis=1), np.linalg.norm(others, axis=1)
    product = others @ rows.T / np.maximum(np.outer(norms[1], norms[0]), 1e-300)
    order = [int(i) for i in product.argmax(axis=1)]
    if sorted(order) != list(range(count)) or order == list(range(count)):
        return None
    shaped = scene.a.reshape(-1, count, scene.a.shape[-1] // count)[:, order]
    return order if scene.explains(shaped.reshape(scene.a.shape)) else None


def shifted(scene: Scene) -> Kind | None:
    """Each place has what its neighbour has in A."""
    if not scene.whole or scene.a.ndim < 2:
        return None
    allowed = scene.allowed
    # The last dimension is the width: a shift there is a permutation.
    for axis in range(scene.a.ndim - 1):
        length = scene.a.shape[axis]
        for by in (1, -1, 2, -2):
            if length <= 2 * abs(by):
                continue
            inner = slice(max(0, -by), length - max(0, by))
            outer = slice(max(0, by), length - max(0, -by))
            a, b = (_along(x, axis, part) for x, part in ((scene.a, outer), (scene.b, inner)))
            if _near(a, b, allowed):
                where = _axis_name(scene, axis)
                return Kind(
                    "shift",
                    f"B is off by {abs(by)} along {where}: place t has what A has at t {by:+d}",
                )
    return None


def _axis_name(scene: Scene, axis: int) -> str:
    batch = next((e.shape for e in scene.a_trace.of_kind("input") if len(e.shape) >= 2), ())
    named = ["the batch", "the positions"]
    if batch and scene.a.shape[: len(batch)] == batch and axis < 2:
        return named[axis]
    return f"dimension {axis}"


def _along(x: Array, axis: int, part: slice) -> Array:
    return x[(slice(None),) * axis + (part,)]


def _near(a: Array, b: Array, allowed: Distance) -> bool:
    return distance(a, b).over(allowed) <= 1


def cut(scene: Scene) -> Kind | None:
    """Exactly 0 over a stretch of one dimension, where A is not."""
    if not scene.whole or not scene.a.ndim:
        return None
    for axis in reversed(range(scene.a.ndim)):
        others = tuple(i for i in range(scene.a.ndim) if i != axis)
        gone = np.atleast_1d(~scene.b.any(axis=others) & scene.a.any(axis=others))
        places = np.flatnonzero(gone)
        if not len(places) or len(places) == len(gone):
            continue
        first, last = int(places[0]), int(places[-1])
        if len(places) == last - first + 1 and len(places) > 1:
            where = f"{_axis_name(scene, axis)} (of {len(gone)})"
            return Kind("zero", f"B is 0 from index {first} to {last} along {where}")
    return None


def row_factors(scene: Scene) -> Kind | None:
    """Each row of the batch times a number of its own: rows are weighted where A weights targets."""
    if not scene.whole or scene.a.ndim < 3 or len(scene.a) < 2:
        return None
    a, b = (x.reshape(len(x), -1) for x in (scene.a, scene.b))
    square = (a * a).sum(1)
    if not square.all():
        return None
    found = (a * b).sum(1) / square
    if not scene.explains((found[:, None] * a).reshape(scene.a.shape)):
        return None
    shown = ", ".join(f"{value:.3g}" for value in found[:6]) + (", ..." if len(found) > 6 else "")
    return Kind("rows", f"the rows of the batch are weighted {shown} in B: a mean of means?")


def tile(scene: Scene) -> Kind | None:
    """Equal up to an index along one dimension and wrong from there on (or the other way round)."""
    if not scene.whole or not scene.a.ndim:
        return None
    rms = math.sqrt(float(np.mean(scene.a**2)))
    wrong = np.abs(scene.b - scene.a) > scene.allowed.worst * (np.abs(scene.a) + rms)
    for axis in reversed(range(scene.a.ndim)):
        others = tuple(i for i in range(scene.a.ndim) if i != axis)
        hit = wrong.any(axis=others)
        places = np.flatnonzero(hit)
        # Both ends wrong is no stretch; and the first place of a causal step cannot show what is wrong with the others.
        if not len(places) or (hit[0] and hit[-1]) or places[0] == 1:
            continue
        first, last = int(places[0]), int(places[-1])
        length = len(hit)
        # A stretch: wrong throughout, right outside. Small differences hide in it here and there.
        if len(places) < 0.8 * (last - first + 1):
            continue
        apart = np.abs(scene.b - scene.a).max(axis=others, initial=0.0)
        outside = np.r_[apart[:first], apart[last + 1 :]]
        if outside.size and outside.max() > OUTSIDE * apart[first : last + 1].max():
            continue
        where = f"{_axis_name(scene, axis)} (of {length})"
        zero = " and is 0 there" if not np.take(scene.b, range(first, last + 1), axis).any() else ""
        if last == length - 1:
            return Kind(
                "tile",
                f"B differs from index {first} on along {where}{zero}: a last tile or a bound",
            )
        if first == 0 and last:
            return Kind("tile", f"B differs up to index {last} along {where}{zero}")
        if len(places) == 1:
            return Kind("tile", f"B differs at index {first} alone along {where}{zero}")
        if length > 2:
            return Kind("tile", f"B differs from index {first} to {last} along {where}{zero}")
    return None
