"""Logits where logits are expected: the softmax (or sigmoid) in front of the loss goes; a missing logarithm is taken."""

import ast

from traindoctor.checks.base import Finding
from traindoctor.fixes.losses import Loss, core, losses_in
from traindoctor.fixes.nodes import argument, called
from traindoctor.fixes.places import line_of, only
from traindoctor.fixes.source import Edit, Source
from traindoctor.fixes.tensors import model_call
from traindoctor.record import Record

# name -> name of its logarithm
SQUASHING = {"softmax": "log_softmax", "sigmoid": "logsigmoid"}
MODULES = {"Softmax": "LogSoftmax", "Sigmoid": "LogSigmoid"}
# What gives the same for logits and for probabilities.
ORDER_ONLY = frozenset(["argmax"])


def fix(source: Source, finding: Finding, record: Record) -> list[Edit]:
    """Only where nothing but the loss (and an argmax) reads what the softmax gives."""
    result = record.exam("loss_input")
    if result is None or not result.done or len(result.values["sites"]) != 1:
        return []
    site = result.values["sites"][0]
    made = site["made_by"] or {}
    statements = source.at_line(line_of(finding))
    if finding.line != made.get("line") or not statements:
        return twice(source, finding) if finding.line != made.get("line") else []
    calls = squashings(source, statements[0])
    squashed = only(calls or [c for c in source.calls(statements[0]) if closing(source, c)])
    if squashed is None:
        return []
    readers = losses_reading(source, squashed)
    if not readers or {loss.kind for loss in readers} != {str(site["kind"]).partition(" ")[0]}:
        return []
    last = closing(source, squashed)
    if last is not None:
        return last_layer(source, squashed, last) if readers[0].kind != "nll_loss" else []
    if readers[0].kind != "nll_loss":
        return removed(source, squashed)
    return logarithm(source, squashed)


def squashings(source: Source, root: ast.AST) -> list[ast.Call]:
    return [call for call in source.calls(root) if inner_of(source, call) is not None]


def inner_of(source: Source, call: ast.Call) -> ast.expr | None:
    """x of `F.softmax(x, -1)`, `x.softmax(-1)`, `nn.Softmax(-1)(x)`, `self.softmax(x)`; None for anything else."""
    made = source.value(call.func)
    if called(made) in MODULES:
        return argument(call, 0, "input")
    if called(call) not in SQUASHING or not isinstance(call.func, ast.Attribute | ast.Name):
        return None
    if isinstance(call.func, ast.Name) or is_library(call.func.value):
        return argument(call, 0, "input")
    return call.func.value


def is_library(node: ast.expr) -> bool:
    """`F`, `torch`, `nn.functional`, `torch.nn.functional`: a name that is imported, by torch's own habit or in full."""
    return ast.unparse(node) in ("F", "torch", "nn.functional", "torch.nn.functional", "functional")


def removed(source: Source, call: ast.Call) -> list[Edit]:
    inner = inner_of(source, call)
    assert inner is not None
    text = source.code(inner)
    simple = isinstance(inner, ast.Name | ast.Attribute | ast.Call | ast.Subscript)
    if "\n" in text and not simple:
        return []
    if not simple and isinstance(source.parent(call), ast.BinOp | ast.UnaryOp | ast.Attribute):
        text = f"({text})"
    return [source.replace(call, text)]


def logarithm(source: Source, call: ast.Call) -> list[Edit]:
    """`softmax` becomes `log_softmax`."""
    made = source.value(call.func)
    function = made.func if isinstance(made, ast.Call) and called(made) in MODULES else call.func
    names = MODULES if function is not call.func else SQUASHING
    start, end = source.span(function)
    name = called(made) if function is not call.func else called(call)
    if name not in ("softmax", "Softmax") or not source.text[start:end].endswith(name):
        return []
    return [Edit(end - len(name), end, names[name])]


def closing(source: Source, call: ast.Call) -> ast.Call | None:
    """The softmax at the end of the nn.Sequential that is called."""
    made = source.value(call.func) if isinstance(call.func, ast.Name | ast.Attribute) else None
    if not isinstance(made, ast.Call) or called(made) != "Sequential" or len(made.args) < 2:
        return None
    last = made.args[-1]
    return last if isinstance(last, ast.Call) and called(last) in MODULES else None


def last_layer(source: Source, call: ast.Call, last: ast.Call) -> list[Edit]:
    """Taken out of the sequence, where nobody else calls that."""
    assert isinstance(call.func, ast.Name | ast.Attribute)
    outside = [node for node in source.uses(call.func) if not same_use(source, node, call)]
    made = source.parent(last)
    if outside or not isinstance(made, ast.Call):
        return []
    return [Edit(source.span(made.args[-2])[1], source.span(last)[1], "")]


def same_use(source: Source, node: ast.expr, call: ast.Call) -> bool:
    """This very call, or an attribute of it (parameters, train)."""
    return node is call.func or isinstance(source.parent(node), ast.Attribute)


# -- who reads it ----------------------------------------------------------------------------------


def losses_reading(source: Source, call: ast.Call) -> list[Loss]:
    """The losses that are given this value; empty where anything else may read it too."""
    every = losses_in(source, source.tree)
    direct = [loss for loss in every if core(loss.scores) is call]
    if direct:
        return direct
    statement = source.statement(call)
    if isinstance(statement, ast.Return) and statement.value is not None:
        return through_a_model(source, statement, call, every)
    if not isinstance(statement, ast.Assign) or core(statement.value) is not call:
        return []
    target = statement.targets[0]
    if len(statement.targets) != 1 or not isinstance(target, ast.Name):
        return []
    return read_by_name(source, statement, target.id, every)


def read_by_name(source: Source, statement: ast.stmt, name: str, every: list[Loss]) -> list[Loss]:
    found: list[Loss] = []
    for use in uses_of(source, statement, name):
        loss = next((one for one in every if core(one.scores) is use), None)
        if loss is not None:
            found.append(loss)
        elif isinstance(returned := source.statement(use), ast.Return):
            through = through_a_model(source, returned, use, every)
            if not through:
                return []
            found += through
        elif not only_ordered(source, use):
            return []
    return found


def uses_of(source: Source, statement: ast.stmt, name: str) -> list[ast.Name]:
    """Every reading, in the same scope, of the value that the statement gives to the name."""
    scope = source.scope(statement)
    found = []
    for node in ast.walk(scope):
        if isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Load):
            binding = source.binding(node)
            if binding is None or binding.statement is statement:
                found.append(node)
    return found


def only_ordered(source: Source, use: ast.expr) -> bool:
    """`probs.argmax(-1)` and `torch.argmax(probs, -1)`; its shape and its like are of no harm either."""
    outer = source.parent(use)
    if isinstance(outer, ast.Attribute):
        return outer.attr in ORDER_ONLY or outer.attr in ("shape", "size", "device", "dtype")
    return isinstance(outer, ast.Call) and called(outer) in ORDER_ONLY


def through_a_model(
    source: Source, returned: ast.Return, value: ast.expr, every: list[Loss]
) -> list[Loss]:
    """`return probs` of a forward: every call of the model must go into a loss, or into an argmax."""
    function, home = source.scope(returned), source.class_of(returned)
    if home is None or not isinstance(function, ast.FunctionDef) or function.name != "forward":
        return []
    returns = [node for node in ast.walk(function) if isinstance(node, ast.Return)]
    if len(returns) != 1 or returned.value is None or core(returned.value) is not value:
        return []
    own = function.args.args[0].arg if function.args.args else ""
    if any(isinstance(c.func, ast.Name) and c.func.id == own for c in source.calls(home)):
        return []  # its generate() calls itself
    models = [
        target.id
        for node in ast.walk(source.tree)
        if isinstance(node, ast.Assign) and called(core(node.value)) == home.name
        for target in node.targets
        if isinstance(target, ast.Name)
    ]
    if len(models) != 1:
        return []
    calls = [
        call
        for call in source.calls()
        if isinstance(call.func, ast.Name) and call.func.id == models[0]
    ]
    # The model in other hands (an argument of a function) may be called anywhere.
    named = [
        node
        for node in ast.walk(source.tree)
        if isinstance(node, ast.Name) and node.id == models[0] and isinstance(node.ctx, ast.Load)
    ]
    if any(not harmless(source, node) for node in named):
        return []
    found: list[Loss] = []
    for call in calls:
        reading = [loss for loss in every if model_call(source, core(loss.scores)) is call]
        if not reading and not only_ordered(source, call):
            return []
        found += reading
    return found


def harmless(source: Source, node: ast.Name) -> bool:
    """Called, or asked for one of its attributes (parameters, train, eval)."""
    outer = source.parent(node)
    return isinstance(outer, ast.Attribute) or (isinstance(outer, ast.Call) and outer.func is node)


def twice(source: Source, finding: Finding) -> list[Edit]:
    """A softmax of what is a softmax in the script's own words."""
    statements = source.at_line(line_of(finding))
    if not statements:
        return []
    nested = [
        call
        for call in squashings(source, statements[0])
        if isinstance(inner := source.value(inner_of(source, call)), ast.Call)  # type: ignore[arg-type]
        and inner_of(source, inner) is not None
    ]
    outer = only(nested)
    return removed(source, outer) if outer is not None else []
