"""Where a tensor at the loss was cut from, through names, get_batch() and a Dataset's items."""

import ast

from traindoctor.fixes.losses import core
from traindoctor.fixes.nodes import Binding, Function, called, constant
from traindoctor.fixes.places import only
from traindoctor.fixes.source import Source


def origin(source: Source, node: ast.expr) -> ast.expr | None:
    """The slice (or the name) that a tensor at the loss was cut as, through get_batch() and a Dataset's items."""
    for _ in range(8):
        node = core(node)
        if called(node) in ("stack", "cat") and isinstance(node, ast.Call) and node.args:
            rows = node.args[0]
            if not isinstance(rows, ast.ListComp | ast.GeneratorExp):
                return None
            node = rows.elt
        elif called(node) in ("tensor", "as_tensor", "from_numpy", "LongTensor", "astype", "array"):
            assert isinstance(node, ast.Call)
            numpy = called(node) == "astype" and isinstance(node.func, ast.Attribute)
            inner = node.func.value if numpy else node.args[0] if node.args else None  # type: ignore[attr-defined]
            if inner is None:
                return None
            node = inner
        elif isinstance(node, ast.Name):
            found = source.binding(node)
            if found is None:
                return node
            further = behind(source, found)
            if further is None:
                return node
            node = further
        elif isinstance(node, ast.Subscript) and isinstance(constant(node.slice), str):
            further = item_of_a_dataset(source, constant(node.slice))
            if further is None:
                return node
            node = further
        else:
            return node
    return None


def behind(source: Source, found: Binding) -> ast.expr | None:
    """The value of a binding, or the part of what a function of the script, or a Dataset, returns."""
    if found.value is not None:
        value = core(found.value)
        return value if isinstance(value, ast.Subscript | ast.Name | ast.Call) else None
    if isinstance(found.statement, ast.For) and found.place is not None:
        return item_of_a_dataset(source, found.place)
    if isinstance(found.whole, ast.Call) and found.place is not None:
        function = only(
            node
            for node in ast.walk(source.tree)
            if isinstance(node, ast.FunctionDef) and node.name == called(found.whole)
        )
        return part_returned(function, found.place) if function is not None else None
    return None


def item_of_a_dataset(source: Source, key: object) -> ast.expr | None:
    function = only(
        node
        for node in ast.walk(source.tree)
        if isinstance(node, ast.FunctionDef) and node.name == "__getitem__"
    )
    return part_returned(function, key) if function is not None else None


def part_returned(function: Function, key: object) -> ast.expr | None:
    """Of the one `return x, y` or `return {"ids": x, "labels": y}`."""
    returned = only(node for node in ast.walk(function) if isinstance(node, ast.Return))
    if returned is None:
        return None
    if isinstance(returned.value, ast.Tuple) and isinstance(key, int):
        return returned.value.elts[key] if key < len(returned.value.elts) else None
    if isinstance(returned.value, ast.Dict):
        pairs = zip(returned.value.keys, returned.value.values)
        return only(value for name, value in pairs if constant(name) == key)
    return None
