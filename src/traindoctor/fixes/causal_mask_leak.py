"""A causal mask where none is, where it hides the past, begins too late, or is added to the scores as zeros and ones."""

import ast

from traindoctor.checks.base import Finding
from traindoctor.fixes.attention_by_hand import by_hand, softmax_of
from traindoctor.fixes.masks import corrected
from traindoctor.fixes.nodes import argument, called, constant, keyword
from traindoctor.fixes.places import line_of, only
from traindoctor.fixes.source import Edit, Source
from traindoctor.fixes.tensors import has_torch, of_one_input
from traindoctor.record import Record

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
