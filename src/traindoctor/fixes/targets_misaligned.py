"""Targets one place behind their inputs: where both are cut from one sequence, or at the loss."""

import ast

from traindoctor.checks.base import Finding
from traindoctor.fixes.losses import Loss, core, losses_in
from traindoctor.fixes.nodes import called, constant, keyword, same
from traindoctor.fixes.origins import origin
from traindoctor.fixes.places import line_of, only
from traindoctor.fixes.slices import (
    ONE,
    Stretch,
    added,
    distance,
    from_the_end,
    linear,
    moved,
    same_length,
    stretch_of,
)
from traindoctor.fixes.source import Edit, Source
from traindoctor.fixes.tensors import model_input, without_slice
from traindoctor.record import Record

FLATTENING = ("view", "reshape", "flatten")
TURNING = ("transpose", "permute", "mT")


def fix(source: Source, finding: Finding, record: Record) -> list[Edit]:
    """Only where the script's own slices say the distance that was measured."""
    result = record.exam("shift")
    if result is None or not result.done:
        return []
    pair = only(p for p in result.values["pairs"] if p["line"] == finding.line)
    if pair is None or pair["shift"] is None or pair["axis"] != 1 or pair.get("prefix"):
        return []
    shift = int(pair["shift"])
    statements = source.at_line(line_of(finding))
    if shift == 1 or not statements:
        return []
    loss = only(losses_in(source, statements[0]))
    if loss is None:
        return labels_shifted_twice(source, statements[0]) if shift == 2 else []
    twice = cut_at_the_loss(source, loss) if shift == 2 else []
    return twice or cut_apart(source, loss, shift)


def cut_apart(source: Source, loss: Loss, shift: int) -> list[Edit]:
    """Inputs and targets are stretches of one sequence, `shift` places apart."""
    given = model_input(source, core(loss.scores))
    if given is None:
        return []
    inputs, targets = origin(source, given), origin(source, core(loss.targets))
    if inputs is None or targets is None:
        return []
    if inputs is targets:
        return cut_scores(source, loss) if shift == 0 else []
    a, b = stretch_of(inputs), stretch_of(targets)
    if a.node is None and b.node is None:
        return cut_scores(source, loss) if shift == 0 and same(inputs, targets) else []
    if b.node is None or distance(source, a, b) != shift or not same_length(source, a, b):
        return []
    lower, upper = moved(source, b.lower, 1 - shift), moved(source, b.upper, 1 - shift)
    if lower is None or upper is None or not inside(source, b, 1 - shift):
        return []
    between = ":" if not (" " in lower or " " in upper) else " : "
    text = f"{lower}{between}{upper}"
    return [source.replace(b.node, text.strip())]


def inside(source: Source, stretch: Stretch, by: int) -> bool:
    """Whether the moved stretch surely stays inside of the sequence, as far as its first place can go."""
    if from_the_end(stretch.upper):
        # Counted from the end: `[:-1]` may become `[1:]`, `[1:]` nothing further.
        end = constant(stretch.upper) if stretch.upper is not None else 0
        return isinstance(end, int) and end + by <= 0
    if by <= 0:
        start = linear(source, stretch.lower)
        return start is not None and start.get(ONE, 0) + by >= 0
    upper = linear(source, stretch.upper)
    assert stretch.upper is not None
    names = [node for node in ast.walk(stretch.upper) if isinstance(node, ast.Name)]
    for name in names:
        highest = highest_of(source, name)
        if highest is None or upper is None or upper.get(name.id) != 1:
            continue
        rest = added(upper, {name.id: 1}, -1)
        # In Python's words: base[... : highest + rest + by], and it may not be longer than the base.
        end = added(added(highest, rest), {ONE: by})
        room = added({f"len({ast.unparse(stretch.base)})": 1}, end, -1)
        return set(room) <= {ONE} and room.get(ONE, 0) >= 0
    return False


def highest_of(source: Source, name: ast.Name) -> dict[str, int] | None:
    """The largest value of an index that `range`, `randint` or `randrange` gives, however it is unpacked."""
    maker = index_maker(source, name)
    if maker is None:
        return None
    if called(maker) == "range":
        stop = (
            maker.args[0]
            if len(maker.args) == 1
            else maker.args[1]
            if len(maker.args) > 1
            else None
        )
    elif called(maker) in ("randint", "randrange", "integers"):
        # torch.randint(high, size), torch.randint(low, high, size), np.random.randint(low, high), random.randint(a, b)
        own = isinstance(maker.func, ast.Attribute) and isinstance(maker.func.value, ast.Name)
        home = maker.func.value.id if own else ""  # type: ignore[attr-defined]
        sized = len(maker.args) > 1 and isinstance(maker.args[1], ast.Tuple)
        stop = (
            maker.args[0]
            if sized or len(maker.args) == 1
            else maker.args[1]
            if maker.args
            else None
        )
        if home == "random" and called(maker) == "randint":
            value = linear(source, stop) if stop is not None else None
            return value
    else:
        return None
    value = linear(source, stop) if stop is not None else None
    return None if value is None else added(value, {ONE: -1})


def index_maker(source: Source, name: ast.Name) -> ast.Call | None:
    """`for i in ix` in a comprehension or a loop, where `ix = torch.randint(...)`."""
    for node in source.above(name):
        for part in getattr(node, "generators", []):
            if isinstance(part.target, ast.Name) and part.target.id == name.id:
                return drawn(source, part.iter)
        if isinstance(node, ast.For) and isinstance(node.target, ast.Name):
            if node.target.id == name.id:
                return drawn(source, node.iter)
    found = source.binding(name)
    return drawn(source, found.value) if found is not None and found.value is not None else None


def drawn(source: Source, node: ast.expr) -> ast.Call | None:
    value = source.value(node)
    while isinstance(value, ast.Call) and called(value) in ("tolist", "item", "int"):
        inner = value.func.value if isinstance(value.func, ast.Attribute) else value.args[0]
        value = source.value(inner)
    return value if isinstance(value, ast.Call) else None


# -- at the loss -----------------------------------------------------------------------------------


def cut_scores(source: Source, loss: Loss) -> list[Edit]:
    """`loss(logits.view(-1, V), ids.view(-1))` -> `loss(logits[:, :-1].reshape(-1, V), ids[:, 1:].reshape(-1))`"""
    if not reduced(source, loss.call) or not batch_first(source, loss):
        return []
    edits = []
    for node, cut in ((loss.scores, "[:, :-1]"), (loss.targets, "[:, 1:]")):
        text = cut_and_reshaped(source, node, cut)
        if text is None:
            return []
        edits.append(source.replace(node, text))
    return edits


def batch_first(source: Source, loss: Loss) -> bool:
    """Whether the loss itself flattens both, or turns the scores' classes to the front: what it is given then has
    the places on its second axis. What was reshaped before has them nobody knows where."""
    scores, targets = shapes(loss.scores), shapes(loss.targets)
    if any(reshaped(source, core(one)) for one in (loss.scores, loss.targets)):
        return False
    turned = scores and scores[-1] in TURNING and len(scores) == 1
    flat = bool(scores) and bool(targets) and scores[-1] in FLATTENING and targets[-1] in FLATTENING
    return flat or (bool(turned) and not targets)


def shapes(node: ast.expr) -> list[str]:
    """The calls that give another shape, the last one last."""
    names = []
    while isinstance(node, ast.Call) and node is not core(node):
        assert isinstance(node.func, ast.Attribute)
        names.append(node.func.attr)
        node = node.func.value
    return [name for name in reversed(names) if name in (*FLATTENING, *TURNING)]


def reshaped(source: Source, node: ast.expr) -> bool:
    """Whether a name already holds another shape, where the script tells: by its own line, or by what a model returns."""
    found = source.binding(node) if isinstance(node, ast.Name) else None
    if found is None or found.value is None:
        return False
    if shapes(found.value):
        return True
    inner = core(found.value)
    return isinstance(inner, ast.Name) and reshaped(source, inner)


def reduced(source: Source, call: ast.Call) -> bool:
    """One number comes out: losses place by place would no longer fit to what they are multiplied with."""
    made = source.value(call.func)
    options = [keyword(one, "reduction") for one in (call, made) if isinstance(one, ast.Call)]
    return all(one is None or constant(one) in ("mean", "sum") for one in options)


def cut_and_reshaped(source: Source, node: ast.expr, cut: str) -> str | None:
    """The chain of shapes over what was cut: a view of a cut tensor is no view any more, and it is shorter."""
    inner = core(node)
    if inner is node and not isinstance(node, ast.Name | ast.Attribute):
        return None
    text, chain = f"{source.code(inner)}{cut}", []
    while node is not inner:
        assert isinstance(node, ast.Call)
        assert isinstance(node.func, ast.Attribute)
        chain.append(node)
        node = node.func.value
    for call in reversed(chain):
        name, given = call.func.attr, [source.code(one) for one in call.args]  # type: ignore[attr-defined]
        if call.keywords:
            return None
        if name in ("view", "reshape"):
            if len(given) > 2:
                return None
            name, given = "reshape", ["-1", *given[1:]]
        text += f".{name}({', '.join(given)})"
    return text


def cut_at_the_loss(source: Source, loss: Loss) -> list[Edit]:
    """Batches that are shifted already: `logits[:, :-1]` against `targets[:, 1:]` shifts them again."""
    edits = []
    for node, lower, upper in ((loss.scores, None, -1), (loss.targets, 1, None)):
        edit = without_slice(source, core(node), lower, upper)
        if edit is None:
            return []
        edits.append(edit)
    return edits


def labels_shifted_twice(source: Source, statement: ast.stmt) -> list[Edit]:
    """`model(x, labels=y)` where the model shifts its labels itself and y is x one place on."""
    call = only(one for one in source.calls(statement) if keyword(one, "labels") is not None)
    if call is None:
        return []
    labels, given = keyword(call, "labels"), keyword(call, "input_ids")
    given = given or (call.args[0] if call.args else None)
    if labels is None or not isinstance(given, ast.Name):
        return []
    inputs, targets = origin(source, given), origin(source, labels)
    if inputs is None or targets is None:
        return []
    a, b = stretch_of(inputs), stretch_of(targets)
    if (a.node is None and b.node is None) or distance(source, a, b) != 1:
        return []
    return [source.replace(labels, given.id)]
