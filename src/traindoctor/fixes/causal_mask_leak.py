"""A causal mask where none is, where it hides the past, begins too late, or is added to the scores as zeros and ones."""

from __future__ import annotations

import ast
from collections.abc import Sequence

from traindoctor.checks.base import Finding
from traindoctor.fixes.masks import corrected
from traindoctor.fixes.nodes import argument, called, constant, keyword, names_in, parameters
from traindoctor.fixes.places import line_of, only
from traindoctor.fixes.source import MOST_NAMES, Edit, Source
from traindoctor.fixes.triangles import penalty, triangle
from traindoctor.record import Record

PRODUCTS = frozenset("matmul bmm einsum baddbmm".split())
# Of the modules of torch that attend: the argument by which a mask is given, and its place.
ATTENDING = {
    "MultiheadAttention": ("attn_mask", 5),
    "TransformerEncoder": ("mask", 1),
    "TransformerEncoderLayer": ("src_mask", 1),
}


def fix(source: Source, finding: Finding, record: Record) -> list[Edit]:
    """The attention at the line where later tokens first reach back."""
    statements = source.at_line(line_of(finding))
    if not statements or not reads_one_text(record):
        return []
    statement = statements[0]
    if isinstance(
        statement, ast.FunctionDef | ast.ClassDef | ast.For | ast.While | ast.If | ast.With
    ):
        return []
    fused = only(c for c in source.calls(statement) if called(c) == "scaled_dot_product_attention")
    if fused is not None:
        return of_fused(source, fused)
    module = only(c for c in source.calls(statement) if kind_of_module(source, c) is not None)
    if module is not None:
        return of_module(source, module)
    softmax = softmax_of(source, statement)
    return by_hand(source, softmax) if softmax is not None else []


def reads_one_text(record: Record) -> bool:
    """With an encoder beside the decoder, the attention may be that of both, and the encoder's has no mask."""
    result = record.exam("dependence")
    pairs = result.values["pairs"] if result is not None and result.done else []
    return len({pair.get("input") for pair in pairs}) == 1


def of_one_input(source: Source, keys_and_values: Sequence[ast.expr]) -> bool:
    """Whether keys and values come from the first argument of the function alone: it is no attention to another text."""
    used = set[str]().union(*map(names_in, keys_and_values))
    function = source.scope(keys_and_values[0])
    if not isinstance(function, ast.FunctionDef):
        return True
    given = parameters(function)[1 if isinstance(source.parent(function), ast.ClassDef) else 0 :]
    other = set(given[1:])
    for _ in range(MOST_NAMES):
        for node in ast.walk(function):
            if isinstance(node, ast.Assign) and names_in(node.value) & other:
                other |= {name for target in node.targets for name in names_in(target)}
    return not used & other


# -- scaled_dot_product_attention ------------------------------------------------------------------


def of_fused(source: Source, call: ast.Call) -> list[Edit]:
    """True in a mask of bools means: look here."""
    if any(one.arg is None for one in call.keywords):
        return []
    causal, mask = argument(call, 5, "is_causal"), argument(call, 3, "attn_mask")
    keys, values = argument(call, 1, "key"), argument(call, 2, "value")
    if keys is None or values is None or not of_one_input(source, [keys, values]):
        return []
    if mask is not None and constant(mask) is None and not is_none(mask):
        return corrected(source, mask, hides=lambda one: one.complement)
    if causal is None:
        return [added_keyword(source, call, "is_causal=True")]
    return [source.replace(causal, "True")] if constant(causal) is False else []


def is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def added_keyword(source: Source, call: ast.Call, text: str) -> Edit:
    """Behind the last argument, however the call is broken into lines."""
    last = max(
        [*call.args, *(one.value for one in call.keywords)], key=lambda one: source.span(one)[1]
    )
    end = source.span(last)[1]
    return Edit(end, end, f", {text}")


# -- modules of torch ------------------------------------------------------------------------------


def kind_of_module(source: Source, call: ast.Call) -> ast.Call | None:
    """What made the module that is called, where it is one of torch's that attend."""
    made = source.value(call.func) if isinstance(call.func, ast.Name | ast.Attribute) else None
    return made if isinstance(made, ast.Call) and called(made) in ATTENDING else None


def of_module(source: Source, call: ast.Call) -> list[Edit]:
    """True in a mask of bools means: hide this."""
    made = kind_of_module(source, call)
    assert made is not None
    name, place = ATTENDING[called(made)]
    mask = argument(call, place, name)
    if mask is not None and not is_none(mask):
        return corrected(source, mask, hides=lambda one: one)
    if mask is not None or not call.args or any(one.arg is None for one in call.keywords):
        return []
    if called(made) == "MultiheadAttention" and not self_attention(call):
        return []
    given = call.args[0]
    axis = sequence_axis(source, made)
    if axis is None or not isinstance(given, ast.Name):
        return []
    size = f"{given.id}.size({axis})"
    square = f"torch.ones({size}, {size}, dtype=torch.bool, device={given.id}.device)"
    return (
        [added_keyword(source, call, f"{name}=torch.triu({square}, diagonal=1)")]
        if has_torch(source)
        else []
    )


def self_attention(call: ast.Call) -> bool:
    """Query, key and value are one tensor: between two, a mask may have no business."""
    first = call.args[:3]
    return len(first) == 3 and len({ast.dump(one) for one in first}) == 1


def sequence_axis(source: Source, made: ast.Call) -> int | None:
    """1 with batch_first=True; an encoder asks the layer that it is made of."""
    if called(made) == "TransformerEncoder":
        layer = argument(made, 0, "encoder_layer")
        inner = source.value(layer) if layer is not None else None
        return sequence_axis(source, inner) if isinstance(inner, ast.Call) else None
    if called(made) not in ATTENDING:
        return None
    first = keyword(made, "batch_first")
    if first is None:
        return 0 if len(made.args) < 6 else None
    return {True: 1, False: 0}.get(constant(first))  # type: ignore[call-overload, no-any-return]


def has_torch(source: Source) -> bool:
    return any(
        isinstance(node, ast.Import)
        and any(one.name == "torch" and not one.asname for one in node.names)
        for node in source.tree.body
    )


# -- by hand ---------------------------------------------------------------------------------------


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
    if not of_one_input(source, [scores]):
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
