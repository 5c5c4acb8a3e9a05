"""A term too many, a term too few, or a gradient over only some rows."""

from itertools import islice

import numpy as np

from traindoctor.compare.kinds.base import Array, Kind, Scene
from traindoctor.compare.trace import Entry
from traindoctor.compare.walk import WORDS

# Tensors of A that are tried as the missing term: those nearest before the difference.
MOST_TRIED = 60
# An explanation that would need larger arrays is not tried.
MOST_ELEMENTS = 1 << 26
COEFFICIENTS = (1.0, -1.0, 2.0, 0.5, -0.5)
NEAR = 0.01


def another_tensor(scene: Scene) -> Kind | None:
    """B holds what A has somewhere else."""
    for entry in islice(scene.earlier(), MOST_TRIED):
        if entry.shape == scene.entry.shape and entry.key != scene.entry.key:
            if scene.explains(entry.values()):
                return Kind("another", f"B has here what A has as {_called(scene, entry)}")
    return None


def added(scene: Scene) -> Kind | None:
    """The difference is another tensor of A: a residual that is missing, a gradient that was kept."""
    apart = scene.b - scene.a
    square = float(np.vdot(apart, apart))
    # Of an earlier step first: what should have been cleared.
    same = [e for e in scene.earlier(scene.entry.kind) if e.name == scene.entry.name]
    for entry in (*same, *islice(scene.earlier(), MOST_TRIED)):
        if entry.shape != scene.entry.shape or entry.dtype.startswith(("int", "uint", "bool")):
            continue
        values = entry.values()
        norm = float(np.vdot(values, values))
        if not norm or not square:
            continue
        found = float(np.vdot(values, apart)) / norm
        near = min(COEFFICIENTS, key=lambda c: abs(c - found))
        if abs(found - near) < NEAR and scene.explains(scene.a + near * values):
            return _said(scene, _called(scene, entry), near, entry.step)
    return None


def _said(scene: Scene, name: str, times: float, step: int) -> Kind:
    kept = scene.entry.kind == "gradient" and step < scene.entry.step
    if times == 1:
        what = "is still in it: gradients are not cleared" if kept else "is added"
        return Kind("added-term", f"{name} {what} in B")
    if times == -1:
        return Kind("missing-term", f"{name} is missing in B")
    return Kind("added-term", f"{name} is in B with {1 + times:g} times its weight")


def _called(scene: Scene, entry: Entry) -> str:
    when = f" of step {entry.step}" if entry.step != scene.entry.step else ""
    return f"the {WORDS[entry.kind]} of {entry.name}{when}"


def rows_of_a_table(scene: Scene) -> Kind | None:
    """What was looked up in a table of weights (tokens, positions) is another row of it."""
    if scene.a.ndim != 3 or not scene.whole:
        return None
    before = (e.values() for e in scene.earlier("activation") if e.shape == scene.entry.shape)
    for x in (np.zeros_like(scene.a), *islice(before, 4)):
        for entry in scene.a_trace.of_kind("weight", 0):
            table = scene.weight(entry.name) if len(entry.shape) == 2 else None
            if table is None or table.shape[1] != scene.a.shape[-1]:
                continue
            own, other = (_looked_up(value[0] - x[0], table) for value in (scene.a, scene.b))
            if own is None or other is None or (own == other).all():
                continue
            if scene.is_a(x + table[own]) and not scene.explains(x + table[other]):
                continue  # every row of the batch has the same: positions
            steps, counts = np.unique(other - own, return_counts=True)
            by = int(steps[counts.argmax()])
            # Places, not tokens: A takes one row after the other. All but the ends of them, where a shift stops or wraps.
            in_a_row = (np.diff(own) == 1).all() and 0 < abs(by) < len(own) / 2
            if in_a_row and counts.max() >= len(own) - abs(by):
                return Kind(
                    "shift", f"place t takes row t {by:+d} of {entry.name} in B instead of row t"
                )
            t = int(np.flatnonzero(own != other)[0])
            return Kind(
                "another",
                f"B takes other rows of {entry.name}: at place {t} row {other[t]}, A row {own[t]}",
            )
    return None


def _looked_up(values: Array, table: Array) -> Array | None:
    """The row of the table that each of these is."""
    if len(values) * len(table) > MOST_ELEMENTS:
        return None
    apart = (values**2).sum(1)[:, None] - 2 * values @ table.T + (table**2).sum(1)  # (T, N)
    found = apart.argmin(axis=1)
    size = (table**2).mean() * table.shape[1]
    exact = ((values - table[found]) ** 2).sum(1)
    return found if (exact < NEAR**2 * size).all() else None


def part_of_the_rows(scene: Scene) -> Kind | None:
    """The gradient of a weight is a sum over rows and places: which of them B has summed."""
    if scene.get("activation", scene.entry.name) is not None:
        return None
    given = scene.get("gradient", scene.owner)
    if given is None or given.ndim < 3:
        return None
    for axis, what in ((0, "row{} {} of the batch"), (1, "position{} {}")):
        terms = _terms(scene, given, axis)
        if terms is None or len(terms) < 2:
            continue
        flat = terms.reshape(len(terms), -1)
        found, *_ = np.linalg.lstsq(flat.T, scene.b.ravel(), rcond=None)
        near = np.round(found)
        if not scene.explains(np.tensordot(near, terms, axes=1)):
            continue
        odd = [i for i in range(len(near)) if near[i] != 1]
        several = len(odd) > 1
        listed = ", ".join(map(str, odd[:6])) + (", ..." if len(odd) > 6 else "")
        words = what.format("s" * several, listed)
        missing = all(near[i] == 0 for i in odd)
        how = ("are" if several else "is") + (" missing" if missing else " counted otherwise")
        return Kind("rows", f"in the sum over the batch {words} {how} in B")
    return None


def _scaled(scene: Scene, moved: Array, axis: int) -> Array | None:
    """For the scale of a normalisation: the gradient times what it scales, read off the output."""
    made, scale = scene.get("activation", scene.owner), scene.weight(scene.entry.name)
    shift = scene.weight(f"{scene.owner}.bias")
    if made is None or scale is None or scale.ndim != 1 or not scale.all():
        return None
    inner = (made - (0 if shift is None else shift)) / scale
    rows = np.moveaxis(inner, axis, 0)
    return moved * rows if rows.shape == moved.shape else None


def replaced(scene: Scene) -> Kind | None:
    """One term of a sum in the place of another: a residual taken behind the norm instead of before it."""
    near = [
        e
        for e in islice(scene.earlier("activation"), MOST_TRIED)
        if e.shape == scene.entry.shape and e.step == scene.entry.step
    ][:6]
    for gone in near:
        for come in near:
            if gone is not come and scene.explains(scene.a - gone.values() + come.values()):
                return Kind(
                    "another",
                    f"B adds {_called(scene, come)} where A adds {_called(scene, gone)}",
                )
    return None


def _terms(scene: Scene, given: Array, axis: int) -> Array | None:
    """What each row (or place) adds to the gradient, if these add up to A's."""
    moved = np.moveaxis(given, axis, 0)
    shape = scene.a.shape
    if len(moved) * scene.a.size > MOST_ELEMENTS:
        return None
    if len(shape) == 1:
        for each in (moved, _scaled(scene, moved, axis)):
            if each is None or each.shape[-1:] != shape:
                continue
            terms = each.reshape(len(each), -1, each.shape[-1]).sum(axis=1)
            if scene.is_a(terms.sum(axis=0)):
                return np.asarray(terms)
        return None
    inner = scene.get("activation", f"{scene.owner}.input")
    candidates = [inner] if inner is not None else []
    candidates += [
        e.values()
        for e in scene.earlier("activation")
        if e.step == scene.entry.step and e.shape == (*given.shape[:-1], shape[-1])
    ]
    for x in candidates[:8]:
        rows = np.moveaxis(x, axis, 0)
        left = moved.reshape(len(moved), -1, moved.shape[-1])
        right = rows.reshape(len(rows), -1, rows.shape[-1])
        terms = np.einsum("rno,rni->roi", left, right)
        if terms.shape[1:] == shape and scene.is_a(terms.sum(axis=0)):
            return np.asarray(terms)
    return None
