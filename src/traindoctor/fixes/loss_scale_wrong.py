"""A sum becomes a mean, and accumulated micro-batches are divided by their number."""

import ast
from typing import Any

from traindoctor.checks.base import Finding
from traindoctor.fixes.nodes import called, constant, keyword, same
from traindoctor.fixes.places import line_of, only
from traindoctor.fixes.source import LOOPS, Edit, Source
from traindoctor.record import Record

# The weight of a sum over n targets is n, to this share.
SUMMED = 0.01
UNDIVIDED = 0.02
LOSSES = frozenset(
    "CrossEntropyLoss NLLLoss MSELoss L1Loss SmoothL1Loss HuberLoss BCELoss BCEWithLogitsLoss KLDivLoss".split()
)
# One number per target: a choice among the classes, or with reduction="none" one of these losses.
CHOICES = frozenset("gather take_along_dim".split())
OF_CLASSES = frozenset("cross_entropy nll_loss CrossEntropyLoss NLLLoss".split())
SHAPES = frozenset("view reshape flatten squeeze unsqueeze contiguous float neg".split())
COUNTING = frozenset("numel size len sum".split())


def fix(source: Source, finding: Finding, record: Record) -> list[Edit]:
    result = record.exam("loss_coefficient")
    if result is None or not result.done:
        return []
    main, passes = result.values["main"], int(result.values["backwards"])
    coefficient = float(main["coefficient"])
    if passes >= 2:
        undivided = abs(coefficient - main["calls"]) < UNDIVIDED * main["calls"]
        return divided(source, passes) if undivided and main["calls"] == passes else []
    if abs(coefficient - float(main["valid"])) < SUMMED * coefficient:
        return meant(source, finding, main)
    return []


# -- a sum -----------------------------------------------------------------------------------------


def meant(source: Source, finding: Finding, main: dict[str, Any]) -> list[Edit]:
    """The one `reduction="sum"`, or the one `.sum()`, of the statement that makes the loss."""
    statements = source.at_line(line_of(finding))
    if not statements or not isinstance(statements[0], ast.Assign | ast.Return | ast.Expr):
        return []
    statement = statements[0]
    if counted_beside(source, statement):
        return []
    kept = [
        reduction for call in source.calls(statement) for reduction in [keyword(call, "reduction")]
    ]
    summed = [one for one in kept if constant(one) == "sum"]
    if len(summed) == 1 and summed[0] is not None:
        return [source.replace(summed[0], quoted(source, summed[0], "mean"))]
    criterion = only(
        made
        for call in source.calls(statement)
        if isinstance(made := source.value(call.func), ast.Call) and called(made) in LOSSES
    )
    if criterion is not None and constant(keyword(criterion, "reduction")) == "sum":
        if sum(source.value(call.func) is criterion for call in source.calls()) != 1:
            return []  # an evaluation may divide its sums itself
        reduction = keyword(criterion, "reduction")
        assert reduction is not None
        return [source.replace(reduction, quoted(source, reduction, "mean"))]
    if summed or criterion is not None or main["valid"] != main["rows"]:
        return []
    return summed_by_hand(source, statement)


def summed_by_hand(source: Source, statement: ast.stmt) -> list[Edit]:
    """`losses.sum()` in the statement itself, or where its one value is summed."""
    total = only(call for call in source.calls(statement) if is_total(call))
    if total is None and isinstance(statement, ast.Assign) and len(statement.targets) == 1:
        target = statement.targets[0]
        if not isinstance(target, ast.Name):
            return []
        block = source.block(statement)
        behind = block[block.index(statement) + 1 :]
        total = only(
            call
            for one in behind
            for call in source.calls(one)
            if is_total(call) and same(summand(call), ast.Name(target.id, ast.Load()))
        )
    if total is None or not one_per_target(source, summand(total)):
        return []
    start, end = source.span(total.func)
    return [Edit(end - len("sum"), end, "mean")] if source.text[start:end].endswith("sum") else []


def counted_beside(source: Source, statement: ast.stmt) -> bool:
    """`total += loss.item(); count += y.numel()`: what is told at the end is a sum over a count, and a mean is none."""
    around = next((one for one in source.above(statement) if isinstance(one, LOOPS)), None)
    sums = [
        node
        for node in ast.walk(around or source.tree)
        if isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Add)
    ]
    return any(
        called(part) in COUNTING or (isinstance(part, ast.Attribute) and part.attr == "shape")
        for one in sums
        for part in ast.walk(one.value)
    )


def one_per_target(source: Source, node: ast.expr) -> bool:
    """Whether surely one number per target is summed: over a product with one-hot targets the mean is another one."""
    node = source.value(node)
    while True:
        if isinstance(node, ast.UnaryOp):
            node = source.value(node.operand)
        elif called(node) in SHAPES and isinstance(node, ast.Call):
            if not isinstance(node.func, ast.Attribute):
                return False
            node = source.value(node.func.value)
        else:
            break
    if not isinstance(node, ast.Call):
        return False
    made = source.value(node.func)
    return called(node) in CHOICES or any(
        constant(keyword(one, "reduction")) == "none"
        for one in (node, made)
        if isinstance(one, ast.Call) and called(one) in OF_CLASSES
    )


def is_total(call: ast.Call) -> bool:
    """`x.sum()` or `torch.sum(x)`: over everything."""
    if called(call) != "sum" or call.keywords or not isinstance(call.func, ast.Attribute):
        return False
    of_torch = isinstance(call.func.value, ast.Name) and call.func.value.id == "torch"
    return len(call.args) == (1 if of_torch else 0)


def summand(call: ast.Call) -> ast.expr:
    assert isinstance(call.func, ast.Attribute)
    return call.args[0] if call.args else call.func.value


def quoted(source: Source, literal: ast.expr, text: str) -> str:
    """In the quotes of the script."""
    quote = source.code(literal)[-1]
    return f"{quote}{text}{quote}"


# -- accumulation ----------------------------------------------------------------------------------


def divided(source: Source, passes: int) -> list[Edit]:
    """`loss.backward()` becomes `(loss / n).backward()`, n as the script writes it."""
    call = only(call for call in source.calls() if called(call) == "backward")
    if call is None or call.args or call.keywords or not isinstance(call.func, ast.Attribute):
        return []
    loss, scaled = call.func.value, False
    if isinstance(loss, ast.Call) and called(loss) == "scale" and len(loss.args) == 1:
        loss, scaled = loss.args[0], True
    elif not isinstance(loss, ast.Name):
        return []
    number = count(source, call, passes)
    if number is None:
        return []
    text = f"{source.code(loss)} / {number}"
    return [source.replace(loss, text if scaled else f"({text})")]


def count(source: Source, call: ast.Call, passes: int) -> str | None:
    """How many backward passes one step has: of `for _ in range(n)`, or of `if (i + 1) % n == 0: optimizer.step()`."""
    loop = next((one for one in source.above(call) if isinstance(one, LOOPS)), None)
    if loop is None:
        return None
    found: list[ast.expr] = []
    if not has_step(loop):
        if isinstance(loop, ast.For) and called(loop.iter) == "range":
            assert isinstance(loop.iter, ast.Call)
            found = loop.iter.args if len(loop.iter.args) == 1 else []
    else:
        tests = [
            node.test
            for node in ast.walk(loop)
            if isinstance(node, ast.If) and has_step_in(node.body)
        ]
        found = [modulus for test in tests for modulus in moduli(test)] if len(tests) == 1 else []
    if len(found) != 1:
        return None
    value = constant(source.value(found[0]))
    # What is not a literal in the script (an argument of its command line) is taken by its name.
    known = isinstance(value, int)
    if (known and value != passes) or not isinstance(
        found[0], ast.Name | ast.Attribute | ast.Constant
    ):
        return None
    return source.code(found[0])


def moduli(test: ast.expr) -> list[ast.expr]:
    return [
        node.right
        for node in ast.walk(test)
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod)
    ]


def has_step(node: ast.AST) -> bool:
    return any(called(one) == "step" for one in ast.walk(node))


def has_step_in(statements: list[ast.stmt]) -> bool:
    return any(has_step(one) for one in statements)
