"""What the model is given and what it gives, in the script's words."""

import ast
from collections.abc import Sequence

from traindoctor.fixes.losses import core
from traindoctor.fixes.nodes import argument, called, constant, keyword, names_in, parameters
from traindoctor.fixes.slices import whole
from traindoctor.fixes.source import MOST_NAMES, Edit, Source

JOINING = frozenset("cat concat concatenate".split())


def model_input(source: Source, scores: ast.expr) -> ast.expr | None:
    """x of `logits = model(x)`, of `model(x).logits`, of `model(input_ids=x)`, of `logits, _ = model(x)`."""
    call = model_call(source, scores)
    if call is None:
        return None
    named = keyword(call, "input_ids")
    return named if named is not None else argument(call, 0, "input_ids")


def model_call(source: Source, scores: ast.expr) -> ast.Call | None:
    for _ in range(6):
        scores = core(scores)
        if isinstance(scores, ast.Name):
            found = source.binding(scores)
            behind = None if found is None else found.value or found.whole
            if behind is None:
                return None
            scores = behind
        elif isinstance(scores, ast.Attribute) and isinstance(scores.value, ast.Name | ast.Call):
            scores = scores.value
        elif isinstance(scores, ast.Subscript):
            scores = scores.value
        else:
            break
    plain = isinstance(scores, ast.Call) and isinstance(scores.func, ast.Name | ast.Attribute)
    return scores if plain else None  # type: ignore[return-value]


def without_slice(
    source: Source, node: ast.expr, lower: int | None, upper: int | None
) -> Edit | None:
    """Takes `[:, lower:upper]` away, at the place itself or where the name was cut."""
    if isinstance(node, ast.Name):
        found = source.binding(node)
        if found is None or found.value is None or len(source.uses(node)) != 1:
            return None
        node = core(found.value)
    if not isinstance(node, ast.Subscript) or not isinstance(node.slice, ast.Tuple):
        return None
    first, *rest = node.slice.elts
    rest = [one for one in rest if not whole(one)]
    if not whole(first) or len(rest) != 1 or not isinstance(rest[0], ast.Slice) or rest[0].step:
        return None
    bounds = (rest[0].lower, rest[0].upper)
    if tuple(None if one is None else constant(one) for one in bounds) != (lower, upper):
        return None
    return source.replace(node, source.code(node.value))


def of_one_input(source: Source, keys_and_values: Sequence[ast.expr]) -> bool:
    """Whether keys and values come from the first argument of the function alone: it is no attention to another text, and
    no memory stands before the keys, which would move the diagonal of a mask."""
    used = set[str]().union(*map(names_in, keys_and_values))
    function = source.scope(keys_and_values[0])
    if not isinstance(function, ast.FunctionDef):
        return True
    if any(called(call) in JOINING for call in source.calls(function)):
        return False
    given = parameters(function)[1 if isinstance(source.parent(function), ast.ClassDef) else 0 :]
    other = set(given[1:])
    for _ in range(MOST_NAMES):
        for node in ast.walk(function):
            if isinstance(node, ast.Assign) and names_in(node.value) & other:
                other |= {name for target in node.targets for name in names_in(target)}
    return not used & other


def has_torch(source: Source) -> bool:
    return any(
        isinstance(node, ast.Import)
        and any(one.name == "torch" and not one.asname for one in node.names)
        for node in source.tree.body
    )
