"""Questions about single nodes of a syntax tree."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from typing import cast

Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Binding:
    """Where a name gets its value: `value` is None where it is a part of something (a loop, an unpacked call)."""

    statement: ast.stmt
    value: ast.expr | None
    whole: ast.expr | None = None
    """What is unpacked, and at which place of it the name stands."""
    place: int | None = None


def called(node: ast.AST) -> str:
    """The last name of what is called: `softmax` of `F.softmax(x)` and of `x.softmax(-1)`; empty for anything else."""
    if not isinstance(node, ast.Call):
        return ""
    function = node.func
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else ""


def constant(node: ast.AST | None) -> object:
    """The value of a literal, with its sign; None for anything else."""
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        inner = constant(node.operand)
        return -inner if isinstance(inner, int | float) else None
    return node.value if isinstance(node, ast.Constant) else None


def keyword(call: ast.Call, name: str) -> ast.expr | None:
    return next((one.value for one in call.keywords if one.arg == name), None)


def argument(call: ast.Call, place: int, name: str) -> ast.expr | None:
    """An argument given by its place or its name; None where it is not given, or hidden behind a star."""
    if any(isinstance(one, ast.Starred) for one in call.args[: place + 1]):
        return None
    return call.args[place] if len(call.args) > place else keyword(call, name)


def is_attribute(node: ast.AST, owner: str, name: str) -> bool:
    return (
        isinstance(node, ast.Attribute)
        and node.attr == name
        and isinstance(node.value, ast.Name)
        and node.value.id == owner
    )


def pairs_of(targets: list[ast.expr], value: ast.expr) -> Iterator[tuple[ast.expr, ast.expr]]:
    """Each target with its value: of `a, b = x, y` both."""
    for target in targets:
        if isinstance(target, ast.Tuple | ast.List) and isinstance(value, ast.Tuple | ast.List):
            if len(target.elts) == len(value.elts):
                yield from zip(target.elts, value.elts)
                continue
        if isinstance(target, ast.Tuple | ast.List):
            yield from ((one, value) for one in target.elts)  # a part of it, no better known
        yield target, value


def given_by(loop: ast.For | ast.AsyncFor) -> ast.expr:
    """The names for one item of what is looped over: of `for i, (x, y) in enumerate(loader)` that is `(x, y)`."""
    counted = called(loop.iter) == "enumerate" and isinstance(loop.target, ast.Tuple)
    return loop.target.elts[-1] if counted else loop.target  # type: ignore[attr-defined]


def same(a: ast.AST, b: ast.AST) -> bool:
    """Equal code, whatever its spaces."""
    return ast.dump(a) == ast.dump(b)


def names_in(node: ast.AST) -> set[str]:
    return {one.id for one in ast.walk(node) if isinstance(one, ast.Name)}


def parameters(function: Function | ast.Lambda) -> list[str]:
    given = function.args
    every = [*given.posonlyargs, *given.args, *given.kwonlyargs]
    return [one.arg for one in [*every, *filter(None, (given.vararg, given.kwarg))]]


def body_of(scope: ast.AST) -> list[ast.stmt]:
    body = getattr(scope, "body", [])
    return cast("list[ast.stmt]", body) if isinstance(body, list) else []


def assigns(statement: ast.stmt, name: str) -> bool:
    """Whether the name may get another value anywhere in the statement (functions inside it aside)."""
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return statement.name == name
    if isinstance(statement, ast.Global | ast.Nonlocal):
        return name in statement.names
    if isinstance(statement, ast.Import | ast.ImportFrom):
        return any((one.asname or one.name.partition(".")[0]) == name for one in statement.names)
    waiting: list[ast.AST] = [statement]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Name) and node.id == name and not isinstance(node.ctx, ast.Load):
            return True
        inner = ast.iter_child_nodes(node)
        waiting += [one for one in inner if not isinstance(one, ast.stmt) or not _hidden(one, name)]
    return False


def _hidden(statement: ast.stmt, name: str) -> bool:
    """A function or class inside is a scope of its own; its name counts."""
    is_scope = isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
    return is_scope and getattr(statement, "name", None) != name


def bound_by(statement: ast.stmt, name: str) -> Binding | None:
    """The value that a plain assignment gives to the name."""
    if isinstance(statement, ast.AnnAssign) and statement.value is not None:
        value, targets = statement.value, [cast("ast.expr", statement.target)]
    elif isinstance(statement, ast.Assign):
        value, targets = statement.value, statement.targets
    else:
        return None
    for target in targets:
        if (found := in_target(statement, target, value, name)) is not None:
            return found
    return None


def in_target(
    statement: ast.stmt, target: ast.expr, value: ast.expr | None, name: str
) -> Binding | None:
    if isinstance(target, ast.Name):
        return Binding(statement, value) if target.id == name else None
    if not isinstance(target, ast.Tuple | ast.List):
        return None
    for place, inner in enumerate(target.elts):
        if isinstance(inner, ast.Starred):
            return None
        if isinstance(inner, ast.Name) and inner.id == name:
            parts = value.elts if isinstance(value, ast.Tuple | ast.List) else None
            if parts is not None and len(parts) == len(target.elts):
                return Binding(statement, parts[place])
            return Binding(statement, None, value, place)
    return None
