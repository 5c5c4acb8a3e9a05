"""Two stretches of one sequence, `text[i : i + T]` and `text[i + 1 : i + 1 + T]`: how many places lie between them.

Bounds are sums of terms with whole-number factors; what is no such sum has no place.
"""

import ast
from dataclasses import dataclass

from traindoctor.fixes.nodes import called, constant, same
from traindoctor.fixes.source import Source

Linear = dict[str, int]
ONE = ""
"""The term of the constant."""


@dataclass(frozen=True)
class Stretch:
    """`base[..., lower:upper]`; a bound that is not written is None."""

    base: ast.expr
    lower: ast.expr | None
    upper: ast.expr | None
    node: ast.Slice | None
    """None where the whole of `base` is meant."""


def stretch_of(node: ast.expr) -> Stretch:
    """The slice over the last axis: `x[a:b]`, `x[:, a:b]`; anything else is a whole."""
    if isinstance(node, ast.Subscript):
        index = node.slice
        parts = index.elts if isinstance(index, ast.Tuple) else [index]
        *before, last = parts
        if all(whole(one) for one in before) and isinstance(last, ast.Slice) and last.step is None:
            return Stretch(node.value, last.lower, last.upper, last)
    return Stretch(node, None, None, None)


def whole(node: ast.expr) -> bool:
    """`:` or `...`"""
    empty = isinstance(node, ast.Slice) and not (node.lower or node.upper or node.step)
    return empty or (isinstance(node, ast.Constant) and node.value is Ellipsis)


def linear(source: Source, node: ast.expr | None) -> Linear | None:
    """`i + 2 * T + 1` as {"i": 1, "T": 2, "": 1}; names of literals are their numbers."""
    if node is None:
        return {}
    value = constant(node)
    if isinstance(value, int):
        return {ONE: value}
    if isinstance(node, ast.Name | ast.Attribute):
        known = constant(source.value(node))
        return {ONE: known} if isinstance(known, int) else {ast.unparse(node): 1}
    if isinstance(node, ast.Call) and called(node) == "len":
        return {ast.unparse(node): 1}
    if isinstance(node, ast.BinOp):
        a, b = linear(source, node.left), linear(source, node.right)
        if a is None or b is None:
            return None
        if isinstance(node.op, ast.Add):
            return added(a, b)
        if isinstance(node.op, ast.Sub):
            return added(a, b, -1)
        if isinstance(node.op, ast.Mult) and (set(a) <= {ONE} or set(b) <= {ONE}):
            factor, rest = (a, b) if set(a) <= {ONE} else (b, a)
            return clean({name: n * factor.get(ONE, 0) for name, n in rest.items()})
    return None


def added(a: Linear, b: Linear, sign: int = 1) -> Linear:
    return clean({name: a.get(name, 0) + sign * b.get(name, 0) for name in {*a, *b}})


def clean(terms: Linear) -> Linear:
    return {name: number for name, number in terms.items() if number}


def distance(source: Source, a: Stretch, b: Stretch) -> int | None:
    """How many places b begins behind a, on the same base; None where that is no number."""
    if not same(a.base, b.base):
        return None
    first, second = linear(source, a.lower), linear(source, b.lower)
    if first is None or second is None:
        return None
    apart = added(second, first, -1)
    return apart.get(ONE, 0) if set(apart) <= {ONE} else None


def same_length(source: Source, a: Stretch, b: Stretch) -> bool:
    lengths = []
    for one in (a, b):
        lower, upper = linear(source, one.lower), linear(source, one.upper)
        if lower is None or upper is None:
            return False
        lengths.append((added(upper, lower, -1), from_the_end(one.upper)))
    return lengths[0] == lengths[1]


def from_the_end(bound: ast.expr | None) -> bool:
    value = constant(bound)
    return bound is None or (isinstance(value, int) and value < 0)


def moved(source: Source, bound: ast.expr | None, by: int) -> str | None:
    """A bound some places on, as a person writes it; None where it would leave the sequence."""
    value = 0 if bound is None else constant(bound)
    if isinstance(value, int):
        return str(value + by) if value + by else ""
    assert bound is not None
    if isinstance(bound, ast.BinOp) and isinstance(bound.op, ast.Add | ast.Sub):
        last = constant(bound.right)
        if isinstance(last, int):
            sign = 1 if isinstance(bound.op, ast.Add) else -1
            return joined(source.code(bound.left), sign * last + by)
    return joined(source.code(bound), by)


def joined(code: str, number: int) -> str:
    if not number:
        return code
    return f"{code} {'+' if number > 0 else '-'} {abs(number)}"
