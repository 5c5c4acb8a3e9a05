"""Which tensor of one side is which of the other: by name, then by shape and order, layer by layer."""

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import SequenceMatcher
from typing import Any, Literal

from traindoctor.errors import TraindoctorError

Shape = tuple[int, ...]
# What a module is given, where no other module made it.
INPUT = ".input"
Layout = Literal["same", "transposed"]


@dataclass(frozen=True)
class Match:
    """Weights of A and of B that hold the same numbers: one each, or one against several that stand side by side."""

    a: tuple[str, ...]
    b: tuple[str, ...]
    layout: Layout = "same"
    """`transposed`: B's are A's turned over (Conv1D against Linear)."""
    dimension: int = 0
    """Of A's layout: where the parts are joined."""

    @property
    def joined(self) -> bool:
        return len(self.a) > 1 or len(self.b) > 1


def match_weights(
    a: Mapping[str, Shape], b: Mapping[str, Shape], given: Mapping[str, Any] | None = None
) -> list[Match]:
    """Pairs of weights. `given` (the map file): name in B -> name in A, or a list of names in A, or null for none."""
    found, left_a, left_b = _given(a, b, given or {})
    for name in list(left_b):
        if name in left_a and _layout(left_a[name], left_b[name]):
            found.append(_pair(name, name, left_a, left_b))
    by_layer_a, by_layer_b = _by_layer(left_a), _by_layer(left_b)
    for layer in by_layer_b:
        if layer in by_layer_a:
            # Which side has the parts of which: the way that leaves fewer weights without a partner.
            ways = [
                _match_layer(by_layer_a[layer], by_layer_b[layer], first) for first in ("a", "b")
            ]
            found += max(ways, key=lambda way: sum(len(match.a + match.b) for match in way))
    by_layer: dict[str, list[Match]] = defaultdict(list)
    for match in found:
        by_layer[_layer(match.b[0])].append(match)
    return [m for some in by_layer.values() for m in _squares_as_the_others(some, a, b)]


def _given(
    a: Mapping[str, Shape], b: Mapping[str, Shape], given: Mapping[str, Any]
) -> tuple[list[Match], dict[str, Shape], dict[str, Shape]]:
    found: list[Match] = []
    left_a, left_b = dict(a), dict(b)
    for name, meant in given.items():
        if name not in b:
            continue  # the name of an activation: see match_modules
        if meant is None:
            del left_b[name]
            continue
        parts = tuple(meant) if isinstance(meant, list) else (meant,)
        if not parts or not all(isinstance(part, str) for part in parts):
            raise TraindoctorError(
                f"map file: {name!r} must stand for a name, a list of names or null"
            )
        if not all(part in a for part in parts):
            missing = next(part for part in parts if part not in a)
            raise TraindoctorError(f"map file: A has no weight {missing!r} (for {name!r} of B)")
        match = _fit(parts, (name,), a, b)
        if match is None:
            shapes = ", ".join(str(a[part]) for part in parts)
            raise TraindoctorError(
                f"map file: {name!r} has the shape {b[name]} in B, {', '.join(parts)} has {shapes} in A"
            )
        found.append(match)
        del left_b[name]
        for part in parts:
            left_a.pop(part, None)
    return found, left_a, left_b


def _layout(a: Shape, b: Shape) -> Layout | None:
    if a == b:
        return "same"
    return "transposed" if len(a) == 2 and a == b[::-1] else None


def _pair(a: str, b: str, left_a: dict[str, Shape], left_b: dict[str, Shape]) -> Match:
    layout = _layout(left_a.pop(a), left_b.pop(b))
    assert layout is not None
    return Match((a,), (b,), layout)


def _fit(
    a: Sequence[str], b: Sequence[str], shapes_a: Mapping[str, Shape], shapes_b: Mapping[str, Shape]
) -> Match | None:
    """One match of these names, if the shapes allow it: equal, turned over, or side by side."""
    first = [shapes_a[name] for name in a]
    second = [shapes_b[name] for name in b]
    for layout in ("same", "transposed"):
        turned = [shape if layout == "same" else shape[::-1] for shape in second]
        if layout == "transposed" and any(len(shape) != 2 for shape in second):
            continue
        for dimension in range(max(1, len(first[0]))):
            if (whole := _joined(first, dimension)) is not None and whole == _joined(
                turned, dimension
            ):
                return Match(tuple(a), tuple(b), layout, dimension)
    return None


def _joined(shapes: Sequence[Shape], dimension: int) -> Shape | None:
    """The shape of these side by side."""
    if len(shapes) == 1:
        return shapes[0]
    if any(len(shape) <= dimension for shape in shapes):
        return None
    rest = {shape[:dimension] + shape[dimension + 1 :] for shape in shapes}
    if len(rest) != 1:
        return None
    shape = shapes[0]
    return (*shape[:dimension], sum(s[dimension] for s in shapes), *shape[dimension + 1 :])


def _by_layer(shapes: Mapping[str, Shape]) -> dict[str, dict[str, Shape]]:
    """Weights by the first number in their names: the layer. Those outside of all layers come as ''."""
    found: dict[str, dict[str, Shape]] = defaultdict(dict)
    for name, shape in shapes.items():
        found[_layer(name)][name] = shape
    return found


def _layer(name: str) -> str:
    number = re.search(r"\d+", name)
    # A number at the very end (c_fc1) names a part and no layer.
    return str(int(number[0])) if number and number.end() < len(name) else ""


def _match_layer(a: Mapping[str, Shape], b: Mapping[str, Shape], first: str) -> list[Match]:
    """Of one layer: where both sides have as many of a shape, by likeness of names and order; else side by side."""
    found = []
    left_a, left_b = dict(a), dict(b)
    # Parts side by side first: a fused weight has a shape of its own, its parts may share theirs with others.
    ways = ((left_a, left_b, False), (left_b, left_a, True))
    for whole, parts, flipped in ways if first == "a" else ways[::-1]:
        for name in [n for n in whole if not _has_partner(whole[n], parts, whole)]:
            lonely = {n: s for n, s in parts.items() if not _has_partner(s, whole, parts)}
            run = _run_of_parts(whole[name], lonely)
            if run is None:
                continue
            match = (
                _fit(run, (name,), parts, whole) if flipped else _fit((name,), run, whole, parts)
            )
            if match is not None:
                found.append(match)
                del whole[name]
                for part in run:
                    del parts[part]
    for shape in dict.fromkeys(_either_way(s) for s in left_a.values()):
        mine = [n for n in left_a if _either_way(left_a[n]) == shape]
        theirs = [n for n in left_b if _either_way(left_b[n]) == shape]
        for x, y in _most_alike(mine, theirs):
            found.append(_pair(x, y, left_a, left_b))
    return found


def _squares_as_the_others(
    found: list[Match], a: Mapping[str, Shape], b: Mapping[str, Shape]
) -> list[Match]:
    """A square matrix does not show which way it lies: as the other matrices of its layer do."""
    matrices = [match for match in found if len(b[match.b[0]]) == 2]
    # Of square parts side by side no shape tells which way they lie either.
    square = [
        m
        for m in matrices
        if all(
            len(set(s)) == 1 for s in ([a[n] for n in m.a] if len(m.a) > 1 else [b[n] for n in m.b])
        )
    ]
    others = [match for match in matrices if match not in square]
    if not others or any(match.layout == "same" for match in others):
        return found
    return [
        replace(m, layout="transposed", dimension=1 - m.dimension if m.joined else 0)
        if m in square and m.layout == "same"
        else m
        for m in found
    ]


def _either_way(shape: Shape) -> Shape:
    return tuple(sorted(shape)) if len(shape) == 2 else shape


def _has_partner(shape: Shape, others: Mapping[str, Shape], own: Mapping[str, Shape]) -> bool:
    """Whether the other side has as many of this shape."""
    this = _either_way(shape)
    count = sum(_either_way(s) == this for s in others.values())
    return count >= sum(_either_way(s) == this for s in own.values())


def _run_of_parts(whole: Shape, parts: Mapping[str, Shape]) -> tuple[str, ...] | None:
    """Two or three neighbours that make the whole when they stand side by side."""
    names = list(parts)
    for count in (3, 2):
        for start in range(len(names) - count + 1):
            run = names[start : start + count]
            # Neighbours of one kind: weights with weights, biases with biases.
            kinds = [name for name in names if name.rpartition(".")[2] == run[0].rpartition(".")[2]]
            place = kinds.index(run[0])
            same = kinds[place : place + count]
            if len(same) < count:
                continue
            shapes = [parts[name] for name in same]
            for shape in (whole, whole[::-1]):
                if any(_joined(shapes, d) == shape for d in range(len(shape))):
                    return tuple(same)
    return None


def _most_alike(a: Sequence[str], b: Sequence[str]) -> Iterable[tuple[str, str]]:
    """In order where both have as many; else by the likeness of names, best first."""
    if len(a) == len(b):
        kinds = [n.rpartition(".")[2] for n in a], [n.rpartition(".")[2] for n in b]
        if kinds[0] == kinds[1]:
            return zip(a, b)
    scores = sorted(
        ((_likeness(x, y), -abs(i - j), x, y) for i, x in enumerate(a) for j, y in enumerate(b)),
        reverse=True,
    )
    found, used = [], set()
    for _, _, x, y in scores:
        if x not in used and y not in used:
            used |= {x, y}
            found.append((x, y))
    return found


def _likeness(a: str, b: str) -> float:
    same_kind = a.rpartition(".")[2] == b.rpartition(".")[2]
    return same_kind + SequenceMatcher(None, a.lower(), b.lower(), autojunk=False).ratio()


class Modules:
    """Name of an output in B -> its name in A: the same name, or the owner of the same weights."""

    def __init__(
        self,
        a: Iterable[str],
        weights: Sequence[Match],
        given: Mapping[str, Any] | None = None,
    ) -> None:
        self._names, self._given = set(a), dict(given or {})
        self._match_of = {part: match for match in weights for part in match.b}
        self._owned = _owned(self._match_of)
        self._by_weights: dict[frozenset[str], str] = {}
        for module, held in _owned([n for match in weights for n in match.a]).items():
            # Of modules with the same weights the innermost: its output is the first that depends on them.
            if len(module) > len(self._by_weights.get(frozenset(held), "")):
                self._by_weights[frozenset(held)] = module

    def of(self, name: str) -> str | None:
        """The output in A that this one of B should equal."""
        meant = self._given.get(name)
        if isinstance(meant, str):
            return meant
        if name in self._names:
            return name
        base, call, number = name.partition("#")
        module, ending = (base[: -len(INPUT)], INPUT) if base.endswith(INPUT) else (base, "")
        held = self._owned.get(module, set())
        matches = [self._match_of[weight] for weight in held]
        if not matches or not all(held.issuperset(match.b) for match in matches):
            return None  # one part of several that stand side by side
        owner = self._by_weights.get(frozenset(n for match in matches for n in match.a))
        meant = f"{owner}{ending}{call}{number}"
        return meant if meant in self._names else None


def _owned(weights: Iterable[str]) -> dict[str, set[str]]:
    """module -> all weights inside it."""
    found: dict[str, set[str]] = defaultdict(set)
    for weight in weights:
        parts = weight.split(".")
        for depth in range(1, len(parts)):
            found[".".join(parts[:depth])].add(weight)
    return found


def describe(matches: Sequence[Match]) -> list[str]:
    """What is not simply the same name: for the user to check."""
    lines = []
    for match in matches:
        if match.a != match.b or match.layout != "same":
            turned = ", transposed" if match.layout == "transposed" else ""
            lines.append(f"{' + '.join(match.a)} = {' + '.join(match.b)}{turned}")
    return lines
