"""Every spelling of an operator is one operator on the tape, and only tape/operators.py knows the spellings."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import get_ignored_functions, get_testing_overrides

from single_step import tape_step
from traindoctor.tape import operators
from traindoctor.tape.operators import OPERATORS, Operator, operator_of
from traindoctor.tape.ops import Op, op_name

SOURCE = Path(operators.__file__).parents[1]

# Kind -> statements on x and y (3, 3), b (a bool of the same), i (whole numbers), separated by semicolons.
PLAIN = {
    "add": "x + y; x + 1; 1 + x; torch.add(x, y); x.add(y)",
    "sub": "x - y; x - 1; torch.sub(x, y); torch.subtract(x, y)",
    "mul": "x * y; x * 2; 2 * x; torch.mul(x, y); torch.multiply(x, y)",
    "div": "x / y; x / 2; torch.div(x, y); torch.true_divide(x, y); x.divide(y)",
    "neg": "-x; torch.neg(x); torch.negative(x)",
    "pow": "x ** 2; x ** y; torch.pow(x, 2); torch.float_power(x, 2)",
    "square": "x.square(); torch.square(x)",
    "sqrt": "x.sqrt()",
    "rsqrt": "torch.rsqrt(x)",
    "reciprocal": "x.reciprocal()",
    "exp": "x.exp(); torch.exp(x)",
    "log": "x.log(); torch.log(x)",
    "matmul": "x @ y; torch.matmul(x, y); torch.mm(x, y); torch.bmm(x[None], y[None]); torch.linalg.matmul(x, y)",
    "einsum": "torch.einsum('ij,jk->ik', x, y)",
    "baddbmm": "torch.baddbmm(x[None], x[None], y[None])",
    "addmm": "torch.addmm(x, x, y)",
    "linear": "F.linear(x, y)",
    "clamp": "x.clamp(0); torch.clamp(x, min=0); x.clip(0); x.clamp_min(0)",
    "round": "x.round()",
    "trunc": "x.trunc(); torch.fix(x)",
    "eq": "x == y; x.eq(y)",
    "ne": "x != y; torch.not_equal(x, y)",
    "lt": "x < y; 1 > x; x.less(y)",
    "le": "x <= y; torch.less_equal(x, y)",
    "gt": "x > y; 1 < x; x.greater(y)",
    "ge": "x >= y; torch.greater_equal(x, y)",
    "softmax": "F.softmax(x, -1); torch.softmax(x, -1); x.softmax(-1); torch.special.softmax(x, -1); "
    "torch._softmax(x, -1, False)",
    "log_softmax": "F.log_softmax(x, -1); torch.log_softmax(x, -1); x.log_softmax(-1); "
    "torch.special.log_softmax(x, -1); torch._log_softmax(x, -1, False)",
    "logsumexp": "x.logsumexp(0); torch.special.logsumexp(x, 0)",
    "logaddexp": "torch.logaddexp(x, y)",
    "relu": "F.relu(x); torch.relu(x); x.relu()",
    "threshold": "F.threshold(x, 0.1, 0); torch.threshold(x, 0.1, 0)",
    "dropout": "F.dropout(x); torch.dropout(x, 0.1, True); F.alpha_dropout(x); F.dropout1d(x); "
    "F.dropout2d(x[None, None]); F.dropout3d(x[None, None, None]); F.feature_alpha_dropout(x); "
    "torch.feature_dropout(x, 0.1, True)",
    "reshape": "x.reshape(9); x.view(9); x.flatten(); x.unflatten(0, (1, 3)); x.ravel(); x.squeeze(); "
    "x.unsqueeze(0); x.view_as(y); x.reshape_as(y)",
    "transpose": "x.transpose(0, 1); x.T; x.mT; x.t(); x.permute(1, 0); x.movedim(0, 1); x.moveaxis(0, 1); "
    "x.swapaxes(0, 1); x.swapdims(0, 1)",
    "expand": "x.expand(2, 3, 3); x.expand_as(y); x.broadcast_to(2, 3, 3)",
    "clone": "x.clone(); x.contiguous(); torch.ops.aten.alias(x)",
    "to": "x.to(torch.float64); x.type(torch.float64); x.type_as(y)",
    "float": "x.float(); x.double()",
    "half": "x.half(); x.bfloat16()",
    "split": "x.split(2); x.chunk(2); x.unbind(0); x.tensor_split(3); x.split_with_sizes([1, 2])",
    "select": "x.select(0, 1); x.narrow(0, 0, 2)",
    "repeat": "x.repeat(2, 1); x.repeat_interleave(2, 0); torch.tile(x, (2,))",
    "detach": "x.detach(); x.data",
    "index": "x[0]; x[:, 1:]; x[i]; torch.ops.aten.index(x, [i])",
    "gather": "x.gather(1, i[:, None])",
    "take_along_dim": "x.take_along_dim(i[:, None], 1)",
    "index_select": "x.index_select(0, i)",
    "take": "x.take(i)",
    "masked_select": "x.masked_select(b)",
    "masked_fill": "x.masked_fill(b, 0)",
    "where": "torch.where(b, x, y); x.where(b, y)",
    "cat": "torch.cat([x, y]); torch.concat([x, y]); torch.concatenate([x, y])",
    "stack": "torch.stack([x, y])",
    "sum": "x.sum(); torch.sum(x, 0)",
    "mean": "x.mean(); torch.mean(x, 0)",
    "cross_entropy": "F.cross_entropy(x, i)",
    "mse_loss": "F.mse_loss(x, y)",
}
REFLECTED = {
    "sub": "1 - x; torch.rsub(x, 1)",
    "div": "1 / x",
    "pow": "2 ** x",
    "matmul": "y.__rmatmul__(x)",
}
IN_PLACE = {
    "add": "x += y; x.add_(y)",
    "sub": "x -= y; x.sub_(y); x.subtract_(y)",
    "mul": "x *= y; x.mul_(y); x.multiply_(y)",
    "div": "x /= y; x.div_(y); x.true_divide_(y)",
    "neg": "x.neg_()",
    "pow": "x **= 2; x.pow_(2)",
    "square": "x.square_()",
    "exp": "x.exp_()",
    "clamp": "x.clamp_(0); x.clip_(0); x.clamp_min_(0)",
    "round": "x.round_()",
    "relu": "torch.relu_(x)",
    "dropout": "torch.dropout_(x, 0.1, True)",
    "masked_fill": "x.masked_fill_(b, 0)",
    "fill": "x.fill_(1)",
    "reshape": "x.unsqueeze_(0)",
    "transpose": "x.t_()",
    "detach": "x.detach_()",
    "setitem": "x[0] = 1",
    "iand": "g = x > 1; g &= b",
    "ior": "g = x > 1; g |= b",
    "ixor": "g = x > 1; g ^= b",
    "ilshift": "g = x.long(); g <<= 1",
    "irshift": "g = x.long(); g >>= 1",
}
CASES = [
    (one.strip(), Operator(kind, in_place, reflected))
    for table, in_place, reflected in (
        (PLAIN, False, False),
        (REFLECTED, False, True),
        (IN_PLACE, True, False),
    )
    for kind, statements in table.items()
    for one in ([statements] if statements.startswith("g =") else statements.split(";"))
]


@cache
def recorded(statement: str) -> Op:
    """The op that the recorder makes of the last call of the statement."""
    model = nn.ParameterList([torch.full((3, 3), 1.5)])
    others = {"y": torch.ones(3, 3), "b": torch.eye(3) > 0, "i": torch.tensor([0, 2, 1])}

    def loss() -> Tensor:
        variables = {"x": model[0] * 1, "torch": torch, "F": F, **others}
        exec(statement, variables)
        return model[0].sum()

    tape = tape_step(loss, model)
    return tape.ops[tape.roots[0].num_ops - 2]


@pytest.mark.parametrize(("statement", "operator"), CASES)
def test_every_spelling_is_recorded_as_its_operator(statement: str, operator: Operator) -> None:
    op = recorded(statement)
    assert (op.kind, op.in_place, op.reflected) == operator, op.name
    assert bool(op.writes) <= op.in_place, "it writes, and is not known to"


def test_every_name_in_the_table_is_one_that_torch_reports() -> None:
    assert set(OPERATORS) <= {recorded(statement).name for statement, _ in CASES}


def test_groups_are_made_of_kinds_that_torch_has() -> None:
    functions = [*get_testing_overrides(), *get_ignored_functions()]
    kinds = {operator_of(op_name(function)).kind for function in functions}
    for name, group in vars(operators).items():
        if isinstance(group, frozenset):
            assert {kind for kind in group if operator_of(kind).kind != kind} == set(), name
            assert group <= kinds, name


def test_operands_stand_in_the_order_of_the_formula() -> None:
    product = recorded("y.__rmatmul__(x)")
    assert product.operands == (product.args[1], product.args[0])
    quotient, inverse = recorded("x / 2"), recorded("1 / x")
    assert quotient.scales
    assert not inverse.scales


# Names of collectives, and the one function whose argument names a dtype.
OTHER_NAMES = ("request.name", 'op.name == "type"', 'op.name != "data"')


@pytest.mark.parametrize("part", ["tape", "graph", "experiment", "exams", "probes"])
def test_nobody_else_knows_the_spellings(part: str) -> None:
    """An op's name is for messages: what it computes is asked of its kind, and groups of kinds have a name."""
    asked = re.compile(r"\.name(\.\w+\(| (not )?in\b| [!=]= \")|\.kind (not )?in [({\[]")
    found = [
        f"{path.relative_to(SOURCE)}: {line.strip()}"
        for path in sorted((SOURCE / part).glob("*.py"))
        for line in path.read_text(encoding="utf-8").splitlines()
        if asked.search(line) and not any(name in line for name in OTHER_NAMES)
    ]
    assert found == []
