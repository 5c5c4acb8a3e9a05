"""Scores, softmax and weighted sum in the script's own lines: a mask for the scores, or the one that is there put right."""

import ast

from traindoctor.fixes.masks import corrected
from traindoctor.fixes.nodes import argument, called, constant, keyword
from traindoctor.fixes.places import only
from traindoctor.fixes.source import Edit, Source
from traindoctor.fixes.tensors import has_torch, of_one_input
from traindoctor.fixes.triangles import penalty, triangle

PRODUCTS = frozenset("matmul bmm einsum baddbmm".split())
# The last axis of scores with heads or without.
LAST = (-1, 3)


def softmax_of(source: Source, statement: ast.stmt) -> ast.Call | None:
    """The one softmax of the function in which two matrices of queries, keys, weights or values are multiplied here."""
    if not any(is_product(node) or called(node) == "softmax" for node in ast.walk(statement)):
        return None
    function = source.scope(statement)
    return only(call for call in source.calls(function) if called(call) == "softmax")


def is_product(node: ast.AST) -> bool:
    if isinstance(node, ast.BinOp):
        return isinstance(node.op, ast.MatMult)
    return called(node) in PRODUCTS


def by_hand(source: Source, softmax: ast.Call) -> list[Edit]:
    of_library = isinstance(softmax.func, ast.Name) or ast.unparse(softmax.func.value) in (  # type: ignore[attr-defined]
        "F",
        "torch",
        "nn.functional",
        "torch.nn.functional",
    )
    scores = argument(softmax, 0, "input") if of_library else softmax.func.value  # type: ignore[attr-defined]
    if scores is None:
        return []
    axis = keyword(softmax, "dim") or next(
        (one for one in reversed(softmax.args) if one is not scores), None
    )
    # A mask of rows and columns hides what is ahead where the softmax runs over the columns.
    if constant(axis) not in LAST or not of_one_input(source, [scores]):
        return []
    masked = mask_before(source, scores)
    if masked == "unclear":
        return []
    if masked is not None:
        return masked  # type: ignore[return-value]
    return new_mask(source, softmax, scores)


def new_mask(source: Source, softmax: ast.Call, scores: ast.expr) -> list[Edit]:
    """A line above the softmax, where its scores have a name."""
    if not isinstance(scores, ast.Name) or not has_torch(source):
        return []
    name = scores.id
    square = f"torch.ones({name}.shape[-2:], dtype=torch.bool, device={name}.device)"
    line = f'{name} = {name}.masked_fill(torch.triu({square}, diagonal=1), float("-inf"))'
    edit = source.insert_before(source.statement(softmax), line)
    return [edit] if edit is not None else []


def mask_before(source: Source, scores: ast.expr) -> list[Edit] | str | None:
    """How the mask on the way to the softmax is corrected: [] where it needs no change, None where there is none,
    "unclear" where what is done to the scores is not understood."""
    for _ in range(12):
        if isinstance(scores, ast.Name):
            if overwritten(source, scores):
                return "unclear"
            found = source.binding(scores)
            if found is None or found.value is None:
                return "unclear"
            scores = found.value
        elif isinstance(scores, ast.Call) and called(scores) in ("masked_fill", "where"):
            return filled(source, scores) or "unclear"
        elif isinstance(scores, ast.BinOp) and isinstance(scores.op, ast.Add):
            return summed(source, scores) or "unclear"
        elif is_product(scores):
            return None
        elif isinstance(scores, ast.BinOp) and isinstance(scores.op, ast.Mult | ast.Div):
            # Scores times a number: the side that is itself a product, or else a name of one.
            scores = scores.left if not_a_number(source, scores.left) else scores.right
        elif isinstance(scores, ast.Call) and called(scores) in ("float", "to", "type_as"):
            scores = scores.func.value  # type: ignore[attr-defined]
        else:
            return "unclear"
    return "unclear"


def overwritten(source: Source, name: ast.Name) -> bool:
    """`att += mask`, `att.masked_fill_(...)`, `att[...] = -inf` anywhere in the function."""
    for node in ast.walk(source.scope(name)):
        if isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name):
            if node.target.id == name.id and not isinstance(node.op, ast.Mult | ast.Div):
                return True
        if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store):
            if isinstance(node.value, ast.Name) and node.value.id == name.id:
                return True
        if called(node).endswith("_") and isinstance(node.func, ast.Attribute):  # type: ignore[attr-defined]
            if isinstance(node.func.value, ast.Name) and node.func.value.id == name.id:  # type: ignore[attr-defined]
                return True
    return False


def not_a_number(source: Source, node: ast.expr) -> bool:
    """A tensor of scores: a product of matrices, or a name of one."""
    if isinstance(node, ast.Name):
        found = source.binding(node)
        return found is not None and found.value is not None and not_a_number(source, found.value)
    if isinstance(node, ast.BinOp) and not is_product(node):
        return any(not_a_number(source, one) for one in (node.left, node.right))
    return is_product(node)


def filled(source: Source, call: ast.Call) -> list[Edit]:
    """`att.masked_fill(hidden, -inf)`, `torch.where(seen, att, -inf)`"""
    if called(call) == "masked_fill" and len(call.args) == 2 and penalty(call.args[1]):
        return corrected(source, call.args[0], hides=lambda one: one)
    if called(call) == "where" and len(call.args) == 3 and penalty(unwrapped(call.args[2])):
        return corrected(source, call.args[0], hides=lambda one: one.complement)
    return []


def unwrapped(node: ast.expr) -> ast.expr:
    """`torch.tensor(-inf)`"""
    inside = isinstance(node, ast.Call) and called(node) in ("tensor", "full_like") and node.args
    return node.args[-1] if inside else node  # type: ignore[attr-defined]


def summed(source: Source, node: ast.BinOp) -> list[Edit]:
    """`att + mask`: zeros and ones become places to hide, and penalties hide what is above the diagonal."""
    for scores, mask in ((node.left, node.right), (node.right, node.left)):
        found = triangle(source, mask)
        if found is None:
            continue
        if found.kind == "penalty":
            return corrected(source, mask, hides=lambda one: one)
        if found.upper and found.diagonal == 1:
            test = "!= 0"
        elif not found.upper and found.diagonal == 0:
            test = "== 0"
        else:
            return []
        inner = source.code(scores)
        if not isinstance(scores, ast.Name | ast.Call | ast.Attribute):
            inner = f"({inner})"
        text = f'{inner}.masked_fill({source.code(mask)} {test}, float("-inf"))'
        return (
            [source.replace(node, text)]
            if isinstance(mask, ast.Name | ast.Attribute | ast.Subscript)
            else []
        )
    return []
