"""`optimizer.zero_grad()` once per step: before the backward pass beside the step, or after the step."""

import ast

from traindoctor.checks.base import Finding
from traindoctor.fixes.nodes import called
from traindoctor.fixes.optimizers import is_optimizer
from traindoctor.fixes.source import LOOPS, Edit, Source
from traindoctor.record import Record


def fix(source: Source, finding: Finding, record: Record) -> list[Edit]:
    """Offered where the script steps one optimizer in one place, and clears gradients nowhere around it."""
    steps = [(call, held) for call in source.calls() if (held := stepped(source, call, record))]
    if len(steps) != 1 or len(record.fact("optimizer.groups") or []) > 1:
        return []
    call, optimizer = steps[0]
    statement = source.statement(call)
    if not isinstance(statement, ast.Expr | ast.Assign):
        return []
    around = region(source, statement)
    if clears(around):
        return []
    line = f"{source.code(optimizer)}.zero_grad()"
    block = source.block(statement)
    earlier = block[: block.index(statement)]
    passes = [one for one in earlier if is_backward(one)]
    if passes and not leaves_early(earlier[earlier.index(passes[0]) :]):
        # In the same block: all that reads .grad between the two still finds it.
        edit = source.insert_before(passes[0], line)
    elif has_backward(around) and not reads_gradients(block[block.index(statement) :]):
        edit = source.insert_after(statement, line)
    else:
        edit = None
    return [edit] if edit is not None else []


def stepped(source: Source, call: ast.Call, record: Record) -> ast.expr | None:
    """The optimizer of `optimizer.step()` or `scaler.step(optimizer)`; None for a scheduler's step, or a step with a closure."""
    if called(call) != "step" or not isinstance(call.func, ast.Attribute):
        return None
    if not call.args and not call.keywords and is_optimizer(source, call.func.value, record):
        return call.func.value
    if len(call.args) == 1 and is_optimizer(source, call.args[0], record):
        return call.args[0]
    return None


def region(source: Source, statement: ast.stmt) -> ast.AST:
    """The innermost loop or function around a step: what is made again for each of them."""
    for one in source.above(statement):
        if isinstance(one, (*LOOPS, ast.FunctionDef, ast.AsyncFunctionDef)):
            return one
    return source.tree


def clears(region: ast.AST) -> bool:
    """Whether anything there already clears gradients, or sets them by hand."""
    for node in ast.walk(region):
        if called(node) in ("zero_grad", "zero_"):
            return True
        if isinstance(node, ast.Attribute) and node.attr == "grad":
            if not isinstance(node.ctx, ast.Load):
                return True
    return False


def is_backward(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and called(statement.value) == "backward"


def leaves_early(statements: list[ast.stmt]) -> bool:
    """A `continue` between backward and step: most passes only add to the gradients, and must find them."""
    leaving = (ast.Continue, ast.Break, ast.Return)
    return any(isinstance(node, leaving) for one in statements for node in ast.walk(one))


def has_backward(region: ast.AST) -> bool:
    return any(called(node) == "backward" for node in ast.walk(region))


def reads_gradients(statements: list[ast.stmt]) -> bool:
    return any(
        isinstance(node, ast.Attribute) and node.attr == "grad"
        for statement in statements
        for node in ast.walk(statement)
    )
