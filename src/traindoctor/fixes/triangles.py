"""What a mask in a script hides: the two triangles of a square, above and below a diagonal.

A triangle is read through names, buffers, slices and casts: `torch.tril(torch.ones(T, T)).view(1, 1, T, T)`. What is no
plain triangle is None.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

from traindoctor.fixes.nodes import argument, called, constant, keyword
from traindoctor.fixes.slices import whole
from traindoctor.fixes.source import Source

# Calls that leave each entry where it is, and what it says.
SAME_ENTRIES = frozenset(
    "view reshape to bool float half bfloat16 int long contiguous expand cuda type type_as detach unsqueeze squeeze requires_grad_".split()
)
# Numbers from here on, below zero, hide a place; -10 does not.
HIDES = -1e3
FILLED = frozenset("ones full ones_like full_like".split())

TESTS: dict[type[ast.cmpop], Callable[[float, float], bool]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
}

Kind = Literal["bool", "number", "penalty"]


@dataclass(frozen=True)
class Triangle:
    """The entries with column - row >= diagonal (upper) or <= diagonal (lower) are set."""

    upper: bool
    diagonal: int
    kind: Kind
    """Set entries are True, 1, or a large negative number; the others False or 0."""
    call: ast.Call
    """The triu or tril."""
    inverted: bool = False
    """Whether this is the complement of what the call makes."""

    @property
    def complement(self) -> Triangle:
        other = self.diagonal - 1 if self.upper else self.diagonal + 1
        return replace(self, upper=not self.upper, diagonal=other, inverted=not self.inverted)

    @property
    def hides_the_future(self) -> bool:
        return self.upper and self.diagonal == 1


def triangle(source: Source, node: ast.expr) -> Triangle | None:
    """What an expression is, as a triangle."""
    for _ in range(16):
        node = source.value(node)
        if isinstance(node, ast.Subscript) and square(node):
            node = node.value
        elif isinstance(node, ast.Call) and called(node) in ("triu", "tril"):
            return made(source, node)
        elif isinstance(node, ast.Call) and called(node) in SAME_ENTRIES:
            if not isinstance(node.func, ast.Attribute):
                return None
            return cast_to(triangle(source, node.func.value), node)
        elif isinstance(node, ast.Call) and called(node) == "logical_not":
            inner = node.args[0] if node.args else getattr(node.func, "value", None)
            return turned(triangle(source, inner)) if inner is not None else None
        elif isinstance(node, ast.Call) and called(node) == "masked_fill":
            return filled(source, node)
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Invert):
            found = triangle(source, node.operand)
            return turned(found) if found is not None and found.kind == "bool" else None
        elif isinstance(node, ast.Compare) and len(node.ops) == 1:
            return compared(source, node)
        elif isinstance(node, ast.BinOp):
            return calculated(source, node)
        else:
            return None
    return None


def square(node: ast.Subscript) -> bool:
    """`mask[:, :, :T, :T]`, `mask[0, 0, :T, :T]`, `mask[:T, :T]`: a corner of the square, from its first row and column on."""
    parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
    for one in parts:
        corner = isinstance(one, ast.Slice) and one.lower is None and one.step is None
        if not (corner or whole(one) or constant(one) in (0, None)):
            return False
    cuts = [one for one in parts if isinstance(one, ast.Slice) and one.upper is not None]
    return not cuts or (len(cuts) == 2 and ast.dump(cuts[0]) == ast.dump(cuts[1]))


def made(source: Source, call: ast.Call) -> Triangle | None:
    """`torch.triu(torch.ones(T, T), diagonal=1)` or `torch.ones(T, T).triu(1)`"""
    as_method = isinstance(call.func, ast.Attribute) and ast.unparse(call.func.value) not in (
        "torch",
        "np",
        "numpy",
    )
    base = call.func.value if as_method else argument(call, 0, "input")  # type: ignore[attr-defined]
    given = argument(call, 0 if as_method else 1, "diagonal")
    given = given if given is not None else keyword(call, "k")
    diagonal = 0 if given is None else constant(given)
    if base is None or not isinstance(diagonal, int):
        return None
    kind = entries(source, base)
    if kind is None:
        return None
    return Triangle(called(call) == "triu", diagonal, kind, call)


def entries(source: Source, node: ast.expr) -> Kind | None:
    """What a square is filled with."""
    node = source.value(node)
    while isinstance(node, ast.Call) and called(node) in SAME_ENTRIES:
        if not isinstance(node.func, ast.Attribute):
            return None
        if called(node) == "bool":
            return "bool"
        node = source.value(node.func.value)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
        return "penalty" if any(penalty(one) for one in (node.left, node.right)) else None
    if not isinstance(node, ast.Call) or called(node) not in FILLED:
        return None
    if "full" in called(node):
        value = argument(node, 1, "fill_value")
        if value is not None and penalty(value):
            return "penalty"
        if constant(value) not in (1, 1.0, True):
            return None
    dtype = keyword(node, "dtype")
    is_bool = dtype is not None and ast.unparse(dtype) in ("torch.bool", "bool")
    return "bool" if is_bool or constant(argument(node, 1, "fill_value")) is True else "number"


def penalty(node: ast.expr) -> bool:
    """-inf in one of its spellings, or a number that is as good."""
    sign, inner = 1.0, node
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        sign, inner = -1.0, node.operand
    value = constant(inner)
    if isinstance(value, int | float):
        return sign * value <= HIDES
    text = ast.unparse(inner)
    if text in ("float('inf')", "torch.inf", "math.inf", "np.inf", "inf"):
        return sign < 0
    smallest = isinstance(inner, ast.Attribute) and inner.attr == "min" and "finfo" in text
    return sign > 0 and (text in ("float('-inf')",) or smallest)


def cast_to(found: Triangle | None, call: ast.Call) -> Triangle | None:
    if found is None or called(call) not in ("bool", "float", "to", "type", "int", "long"):
        return found
    wanted = called(call)
    if wanted in ("to", "type"):
        texts = [ast.unparse(one) for one in [*call.args, *(k.value for k in call.keywords)]]
        names = [t.removeprefix("torch.") for t in texts]
        wanted = next((t for t in names if t in ("bool", "float", "float32", "int", "long")), "")
    if not wanted or found.kind == "penalty":
        return found
    return replace(found, kind="bool" if wanted == "bool" else "number")


def turned(found: Triangle | None) -> Triangle | None:
    return None if found is None else replace(found.complement, kind="bool")


def compared(source: Source, node: ast.Compare) -> Triangle | None:
    """`mask == 0`, `mask == 1`, `mask != 0`, `mask > 0`, `mask < 0.5`"""
    found, value = triangle(source, node.left), constant(node.comparators[0])
    if found is None or found.kind == "penalty" or not isinstance(value, int | float):
        return None
    test = TESTS.get(type(node.ops[0]))
    if test is None or test(1, value) == test(0, value):
        return None
    return replace(found, kind="bool") if test(1, value) else turned(found)


def calculated(source: Source, node: ast.BinOp) -> Triangle | None:
    """`1 - mask` and `mask * -1e9`"""
    if isinstance(node.op, ast.Sub) and constant(node.left) in (1, 1.0):
        found = triangle(source, node.right)
        if found is None or found.kind != "number":
            return None
        return found.complement
    if isinstance(node.op, ast.Mult):
        for one, other in ((node.left, node.right), (node.right, node.left)):
            if penalty(one):
                found = triangle(source, other)
                return replace(found, kind="penalty") if found is not None else None
    return None


def filled(source: Source, call: ast.Call) -> Triangle | None:
    """`torch.zeros(T, T).masked_fill(mask, -inf)`, or the same on the triangle itself."""
    if len(call.args) != 2 or not penalty(call.args[1]) or not isinstance(call.func, ast.Attribute):
        return None
    found = triangle(source, call.args[0])
    base = source.value(call.func.value)
    if found is None or called(base) not in ("zeros", "zeros_like"):
        return None
    return replace(found, kind="penalty")
