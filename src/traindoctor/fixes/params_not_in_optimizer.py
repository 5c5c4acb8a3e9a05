"""All parameters of the model for the optimizer: where some were left out, where it was made too early, where a list hides them."""

import ast
from collections.abc import Mapping
from typing import Any

from traindoctor.checks.base import Finding
from traindoctor.fixes.nodes import argument, called, names_in, same
from traindoctor.fixes.optimizers import built
from traindoctor.fixes.places import only
from traindoctor.fixes.source import Edit, Source
from traindoctor.record import Record


def fix(source: Source, finding: Finding, record: Record) -> list[Edit]:
    coverage = record.fact("optimizer.coverage")
    made = only(built(source, record))
    if made is None or not isinstance(coverage, Mapping) or coverage.get("optimizers") != 1:
        return []
    given = argument(made, 0, "params")
    names = [str(one.get("name")) for one in coverage.get("missing") or []]
    if given is None or not names:
        return []
    if all("[" in name for name in names):
        return in_a_list(source, names)
    if whole_model(source, given) is not None:
        return made_too_early(source, made, given, names, coverage)
    # With those that are missing it must hold everything that is trained.
    if coverage["held"] + coverage["num_missing"] != coverage["trainable"]:
        return []
    return left_out(source, given)


def whole_model(source: Source, given: ast.expr) -> str | None:
    """`model` of `model.parameters()`."""
    value = source.value(given)
    if called(value) != "parameters" or not isinstance(value, ast.Call) or value.args:
        return None
    owner = value.func.value if isinstance(value.func, ast.Attribute) else None
    return owner.id if isinstance(owner, ast.Name) else None


# -- some are left out -----------------------------------------------------------------------------


def left_out(source: Source, given: ast.expr) -> list[Edit]:
    value = source.value(given)
    if isinstance(value, ast.ListComp | ast.GeneratorExp):
        return unfiltered(source, value)
    owners = owners_of(value)
    roots = [one.value for one in owners if isinstance(one, ast.Attribute)]
    if not owners or len(roots) != len(owners) or not all(same(one, roots[0]) for one in roots):
        return []
    if not isinstance(roots[0], ast.Name) or is_a_part(source, roots[0]):
        return []
    return [source.replace(value, f"{roots[0].id}.parameters()")]


def owners_of(value: ast.expr) -> list[ast.expr]:
    """The modules of `a.parameters()`, of `list(a.parameters()) + list(b.parameters())`, of `[*a.parameters(), *b.parameters()]`;
    empty where there is anything else."""
    if isinstance(value, ast.Call) and called(value) == "list" and len(value.args) == 1:
        return owners_of(value.args[0])
    if isinstance(value, ast.Call) and called(value) == "parameters" and not value.args:
        return [value.func.value] if isinstance(value.func, ast.Attribute) else []
    if isinstance(value, ast.BinOp) and isinstance(value.op, ast.Add):
        parts = [owners_of(value.left), owners_of(value.right)]
    elif isinstance(value, ast.List) and all(isinstance(one, ast.Starred) for one in value.elts):
        parts = [owners_of(one.value) for one in value.elts if isinstance(one, ast.Starred)]
    else:
        return []
    return [one for part in parts for one in part] if all(parts) else []


def unfiltered(source: Source, value: ast.ListComp | ast.GeneratorExp) -> list[Edit]:
    """`[p for name, p in model.named_parameters() if ...]` without its condition; `p.requires_grad` stays."""
    part = only(value.generators)
    if part is None or not isinstance(value.elt, ast.Name) or not part.ifs:
        return []
    iterated, named = part.iter, part.target
    wanted = called(iterated)
    if wanted == "named_parameters" and isinstance(named, ast.Tuple) and len(named.elts) == 2:
        named = named.elts[1]
    elif wanted != "parameters":
        return []
    if not isinstance(named, ast.Name) or named.id != value.elt.id:
        return []
    assert isinstance(iterated, ast.Call)
    if not isinstance(iterated.func, ast.Attribute) or not isinstance(
        iterated.func.value, ast.Name
    ):
        return []
    if is_a_part(source, iterated.func.value):
        return []
    kept = f"{named.id}.requires_grad"
    conditions = [
        one
        for test in part.ifs
        for one in (
            test.values if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And) else [test]
        )
    ]
    start, end = source.span(part.iter)[1], source.span(part.ifs[-1])[1]
    keeps = any(ast.unparse(one) == kept for one in conditions)
    return [Edit(start, end, f" if {kept}" if keeps else "")]


def is_a_part(source: Source, name: ast.Name) -> bool:
    """`body` of `body = model.body` or of `model = Classifier(body)`: its parameters are not all there are."""
    if isinstance(source.value(name), ast.Attribute | ast.Subscript):
        return True
    holders = {"Sequential", "ModuleList", "ModuleDict"} | {
        node.name
        for node in ast.walk(source.tree)
        if isinstance(node, ast.ClassDef)
        and any(ast.unparse(base).rpartition(".")[2] == "Module" for base in node.bases)
    }
    return any(
        called(call) in holders and name.id in names_in(call)
        for call in source.calls()
        if not (isinstance(call.func, ast.Name) and call.func.id == name.id)
    )


# -- made before the module ------------------------------------------------------------------------


def made_too_early(
    source: Source, made: ast.Call, given: ast.expr, names: list[str], coverage: Mapping[str, Any]
) -> list[Edit]:
    """`optimizer = AdamW(model.parameters())` goes behind the `model.head = ...` that follows it."""
    statement = source.statement(made)
    owner = whole_model(source, given)
    block = source.block(statement)
    if not isinstance(statement, ast.Assign) or coverage["num_missing"] != len(names):
        return []
    parts = {name.partition(".")[0] for name in names}
    behind = block[block.index(statement) + 1 :]
    placed = [
        one
        for one in behind
        if isinstance(one, ast.Assign)
        and len(one.targets) == 1
        and isinstance(target := one.targets[0], ast.Attribute)
        and isinstance(target.value, ast.Name)
        and target.value.id == owner
        and target.attr in parts
    ]
    if len(placed) != len(parts) or not source.alone(statement):
        return []
    last = placed[-1]
    bound = names_in(ast.Tuple(list(statement.targets), ast.Store()))
    between = behind[: behind.index(last) + 1]
    if any(names_in(one) & bound for one in between):
        return []
    edit = source.insert_after(last, source.code(statement))
    return [source.without(statement), edit] if edit is not None else []


# -- modules in a plain list -----------------------------------------------------------------------


def in_a_list(source: Source, names: list[str]) -> list[Edit]:
    """`self.layers = [...]` becomes an nn.ModuleList."""
    attributes = {name.partition("[")[0].rpartition(".")[2] for name in names}
    home = module_list(source)
    # A parameter right in the list is no module.
    if len(attributes) != 1 or home is None or not all("]." in name for name in names):
        return []
    attribute = attributes.pop()
    lists = [
        node.value
        for node in ast.walk(source.tree)
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Attribute) and target.attr == attribute
    ]
    value = only(lists)
    if not isinstance(value, ast.List | ast.ListComp) or not begun(source, value):
        return []
    return [source.replace(value, f"{home}({source.code(value)})")]


def begun(source: Source, value: ast.expr) -> bool:
    """Whether `super().__init__()` was called before: only then a module takes in others."""
    function = source.scope(source.statement(value))
    return any(
        called(call) == "__init__" and call.lineno < value.lineno for call in source.calls(function)
    )


def module_list(source: Source) -> str | None:
    """How the script can write it, by its imports."""
    for node in source.tree.body:
        if isinstance(node, ast.ImportFrom) and node.module == "torch":
            if any(one.name == "nn" and not one.asname for one in node.names):
                return "nn.ModuleList"
        if isinstance(node, ast.Import):
            for one in node.names:
                if one.name == "torch.nn" and one.asname:
                    return f"{one.asname}.ModuleList"
    torch = any(
        isinstance(node, ast.Import)
        and any(one.name in ("torch", "torch.nn") and not one.asname for one in node.names)
        for node in source.tree.body
    )
    return "torch.nn.ModuleList" if torch else None
