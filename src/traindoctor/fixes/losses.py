"""Calls of loss functions, and what is only another shape of a tensor."""

import ast
from dataclasses import dataclass

from traindoctor.fixes.nodes import argument, called
from traindoctor.fixes.source import Source

FUNCTIONS = frozenset("cross_entropy nll_loss binary_cross_entropy_with_logits".split())
MODULES = {
    "CrossEntropyLoss": "cross_entropy",
    "NLLLoss": "nll_loss",
    "BCEWithLogitsLoss": "binary_cross_entropy_with_logits",
}
# The same numbers in the same order of places, but for the two that exchange axes.
RESHAPING = frozenset("view reshape flatten contiguous float long to transpose permute mT".split())


@dataclass(frozen=True)
class Loss:
    """`kind(scores, targets)` in the script."""

    call: ast.Call
    kind: str
    scores: ast.expr
    targets: ast.expr


def losses_in(source: Source, root: ast.AST) -> list[Loss]:
    found = []
    for call in source.calls(root):
        kind = called(call) if called(call) in FUNCTIONS else kind_of(source, call)
        scores, targets = argument(call, 0, "input"), argument(call, 1, "target")
        if kind and scores is not None and targets is not None:
            found.append(Loss(call, kind, scores, targets))
    return found


def kind_of(source: Source, call: ast.Call) -> str:
    """Of `criterion(...)`, where criterion is `nn.CrossEntropyLoss()`."""
    made = source.value(call.func)
    return MODULES.get(called(made), "")


def core(node: ast.expr) -> ast.expr:
    """What is inside of `x.view(-1, V)`, `x.contiguous().flatten(0, 1)`, `x.long()`."""
    while isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        if node.func.attr not in RESHAPING:
            return node
        node = node.func.value
    return node
