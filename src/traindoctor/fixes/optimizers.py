"""Which names of a script hold the optimizer that the record saw."""

import ast
from collections.abc import Iterator

from traindoctor.fixes.nodes import called, parameters
from traindoctor.fixes.source import Source
from traindoctor.record import Record

# From call to function to call.
DEEPEST = 4


def built(source: Source, record: Record) -> list[ast.Call]:
    """The calls that build an optimizer of the class that stepped."""
    groups = record.fact("optimizer.groups") or []
    classes = {str(one.get("class", "")) for one in groups if isinstance(one, dict)}
    return [call for call in source.calls() if called(call) in classes - {""}]


def is_optimizer(source: Source, node: ast.expr, record: Record, depth: int = 0) -> bool:
    """Whether a name, an attribute or an argument of a function surely is an optimizer of the recorded class."""
    if depth > DEEPEST:
        return False
    value = source.value(node)
    if isinstance(value, ast.Call):
        if any(value is one for one in built(source, record)):
            return True
        return gives_optimizer(source, value, record, depth)
    if isinstance(value, ast.Name):
        given = list(arguments_for(source, value))
        return bool(given) and all(is_optimizer(source, one, record, depth + 1) for one in given)
    return False


def gives_optimizer(source: Source, call: ast.Call, record: Record, depth: int) -> bool:
    """A function of the script that returns one: `def make_optimizer(model): return AdamW(...)`."""
    functions = [
        node
        for node in ast.walk(source.tree)
        if isinstance(node, ast.FunctionDef) and node.name == called(call)
    ]
    if len(functions) != 1:
        return False
    returned = [node.value for node in ast.walk(functions[0]) if isinstance(node, ast.Return)]
    return bool(returned) and all(
        one is not None and is_optimizer(source, one, record, depth + 1) for one in returned
    )


def arguments_for(source: Source, name: ast.Name) -> Iterator[ast.expr]:
    """What the script's calls give for a parameter of the function that the name stands in; nothing where one hides it."""
    function = source.scope(name)
    if not isinstance(function, ast.FunctionDef) or name.id not in parameters(function):
        return
    names = [one.arg for one in [*function.args.posonlyargs, *function.args.args]]
    method = isinstance(source.parent(function), ast.ClassDef)
    found: list[ast.expr] = []
    for call in source.calls():
        if called(call) != function.name:
            continue
        given = next((one.value for one in call.keywords if one.arg == name.id), None)
        place = names.index(name.id) - int(method) if name.id in names else -1
        if given is None and 0 <= place < len(call.args):
            given = call.args[place]
        if given is None or any(isinstance(one, ast.Starred) for one in call.args):
            return
        found.append(given)
    yield from found
