"""A mask that is there and hides the wrong places: corrected where it is made, or where it is used."""

import ast
from collections.abc import Callable

from traindoctor.fixes.nodes import called
from traindoctor.fixes.source import Edit, Source
from traindoctor.fixes.triangles import Triangle, triangle

# From the entries that a mask of bools marks to those that it hides.
Hides = Callable[[Triangle], Triangle]


def corrected(source: Source, mask: ast.expr, *, hides: Hides) -> list[Edit]:
    """The triangle of a mask that hides the wrong places, where it is made; zeros and ones that are added, where they are
    used. `hides` says which entries of a mask of bools are hidden."""
    found = triangle(source, mask)
    if found is None:
        return []
    if found.kind == "number" and isinstance(source.parent(mask), ast.Call | ast.keyword):
        used = source.parent(mask)
        call = used if isinstance(used, ast.Call) else source.parent(used)  # type: ignore[arg-type]
        if called(call) != "masked_fill" and called(call) != "where":  # type: ignore[arg-type]
            return as_bools(source, mask, found, hides)
    hidden: Triangle = found if found.kind == "penalty" else hides(found)
    if hidden.hides_the_future or not used_once(source, mask):
        return []
    return [remade(source, hidden)]


def as_bools(source: Source, mask: ast.expr, found: Triangle, hides: Hides) -> list[Edit]:
    """A float mask is added to the scores: as zeros and ones it hides nothing."""
    text = source.code(mask)
    if not isinstance(mask, ast.Name | ast.Attribute | ast.Subscript | ast.Call):
        text = f"({text})"
    for test in ("== 0", "!= 0"):
        marked = found.complement if test == "== 0" else found
        hidden: Triangle = hides(marked)
        if hidden.hides_the_future:
            return [source.replace(mask, f"{text} {test}")]
    return []


def remade(source: Source, hidden: Triangle) -> Edit:
    """The triu or tril itself, so that what is hidden lies above the diagonal."""
    call = hidden.call
    function = source.code(call.func)
    head = function.rpartition(".")[0]
    as_method = isinstance(call.func, ast.Attribute) and head not in ("torch", "np", "numpy")
    # What the call marks is what is hidden, or what is not.
    name, diagonal = ("tril", 0) if hidden.inverted else ("triu", 1)
    kept = [] if as_method else [source.code(call.args[0])]
    given = [] if diagonal == 0 else ["k=1" if head in ("np", "numpy") else "diagonal=1"]
    whole = f"{head}.{name}" if head else name
    return source.replace(call, f"{whole}({', '.join([*kept, *given])})")


def used_once(source: Source, mask: ast.expr) -> bool:
    """No other use of the same mask may want it as it is."""
    node: ast.expr = mask
    for _ in range(16):
        if isinstance(node, ast.Name | ast.Attribute) and not isinstance(node, ast.Constant):
            if isinstance(node, ast.Name) or isinstance(node.value, ast.Name):
                behind = source.value(node)
                if behind is node:
                    return isinstance(node, ast.Attribute)
                if len(reads(source, node)) > 1:
                    return False
                node = one_step(source, node)
                continue
        inner = inner_of(node)
        if inner is None:
            return True
        node = inner
    return False


def reads(source: Source, node: ast.Name | ast.Attribute) -> list[ast.expr]:
    return source.uses(node)


def one_step(source: Source, node: ast.Name | ast.Attribute) -> ast.expr:
    if isinstance(node, ast.Name):
        found = source.binding(node)
        assert found is not None
        assert found.value is not None
        return found.value
    return source.attribute_values(node)[0]


def inner_of(node: ast.expr) -> ast.expr | None:
    """What a slice, a cast, a comparison or a sign is made of."""
    if isinstance(node, ast.Subscript):
        return node.value
    if isinstance(node, ast.UnaryOp):
        return node.operand
    if isinstance(node, ast.Compare):
        return node.left
    if isinstance(node, ast.Call) and called(node) not in ("triu", "tril"):
        return node.func.value if isinstance(node.func, ast.Attribute) else None
    return None
