"""A tape for batches of other sizes: rows that are padded to the longest of their batch, another number of them.

Two taped steps whose data have different sizes ran the same functions. A whole number in their arguments that differs
between them follows a size of the data (`view(b * t, h)`, `arange(t)`); which one, and how, is worked out from the
pair. Whether it was guessed right is seen where such tapes are used: their losses are compared with the script's own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import combinations_with_replacement
from typing import Any

import torch
from torch import Tensor

from traindoctor.errors import ReplayError
from traindoctor.ground.nested import replace as replace_leaves
from traindoctor.tape.ops import Op, Ref
from traindoctor.tape.tape import StepTape

# Floats that follow a size do so to rounding: 1 / n in float64.
ROUNDING = 1e-9

# A size of the data: a name for it, and which dimension.
Symbol = tuple[Any, int]
# A number as a function of the sizes.
Rule = Callable[[Mapping[Symbol, int]], float]


@dataclass(frozen=True)
class Sizes:
    """The sizes of the data that differ between two steps."""

    first: Mapping[Symbol, int]
    second: Mapping[Symbol, int]

    @classmethod
    def of(cls, pairs: Iterable[tuple[Any, Tensor, Tensor]]) -> Sizes:
        """`pairs` of tensors, the same piece of data at either step, with their names."""
        first: dict[Symbol, int] = {}
        second: dict[Symbol, int] = {}
        known: set[tuple[int, int]] = set()
        for name, one, other in pairs:
            if one.dim() != other.dim():
                raise ReplayError("the data's number of dimensions differs between steps")
            for dim, pair in enumerate(zip(one.shape, other.shape)):
                if pair[0] != pair[1] and pair not in known:
                    known.add(pair)
                    first[name, dim], second[name, dim] = pair
        return cls(first, second)

    def rule(self, one: int, other: int) -> Rule:
        """How a whole number that was `one` and `other` follows the sizes."""
        found: list[tuple[int, Rule]] = []
        for symbol, size in self.first.items():
            slope = Fraction(other - one, self.second[symbol] - size)
            rest = one - slope * size
            if rest == 0 or slope.denominator == 1:
                # The size itself, a multiple of it, the size and something, something less the size, anything else.
                order = [slope == 1 and rest == 0, rest == 0, slope == 1, slope == -1, True]
                found.append((order.index(True), _linear(symbol, slope, rest)))
        if not found:
            for pair in combinations_with_replacement(self.first, 2):
                sizes = math.prod(self.first[s] for s in pair)
                if one * math.prod(self.second[s] for s in pair) == other * sizes:
                    found.append((0, _product(pair, Fraction(one, sizes))))
        if not found:
            raise ReplayError(
                f"a number in the step ({one}, then {other}) does not follow from the sizes of "
                "its data"
            )
        return min(found, key=lambda item: item[0])[1]

    def rule_of_float(self, one: float, other: float) -> Rule | None:
        """A float in proportion to a size or to its inverse; None: it follows something else, and stays."""
        for symbol, size in self.first.items():
            grown = self.second[symbol] / size
            if math.isclose(other, one * grown, rel_tol=ROUNDING):
                return lambda sizes, s=symbol: one * sizes[s] / self.first[s]  # type: ignore[misc]
            if math.isclose(other, one / grown, rel_tol=ROUNDING):
                return lambda sizes, s=symbol: one * self.first[s] / sizes[s]  # type: ignore[misc]
        return None


def _linear(symbol: Symbol, slope: Fraction, rest: Fraction) -> Rule:
    return lambda sizes: slope * sizes[symbol] + rest  # type: ignore[return-value]


def _product(symbols: Sequence[Symbol], factor: Fraction) -> Rule:
    return lambda sizes: factor * math.prod(sizes[s] for s in symbols)  # type: ignore[return-value]


class Stretch:
    """`stretch.tape(data)` is the tape for data of other sizes, with the same Refs.

    `tables` are tensors that depend on nothing but a size (angles of positions, a causal mask): a smaller one is the
    beginning of a larger one, so that the largest that was taped serves up to its size.
    """

    def __init__(
        self, tape: StepTape, others: Sequence[StepTape], sizes: Sizes, tables: Iterable[Ref]
    ) -> None:
        """All ran the same functions; `sizes` are those of the tape and of the first of the others."""
        self.base = tape
        self._sizes = sizes
        self._rules: dict[int, list[Rule | None]] = {}
        for number, (op, there) in enumerate(zip(tape.ops, others[0].ops)):
            rules = self._compare((op.args, op.kwargs), (there.args, there.kwargs))
            if any(rule is not None for rule in rules):
                self._rules[number] = rules
        self._tables: dict[Ref, tuple[Tensor, list[Rule | None]]] = {}
        for ref in tables:
            taped = [one.constants[ref] for one in (tape, *others) if ref in one.constants]
            shapes = tuple(taped[0].shape), tuple(taped[1].shape)
            self._tables[ref] = widest(taped), self._compare(*shapes)
        self._made: dict[tuple[int, ...], StepTape] = {}

    def _compare(self, one: Any, other: Any) -> list[Rule | None]:
        """For each number of the arguments, in order; None for those that stay."""
        ours, theirs = numbers_in(one), numbers_in(other)
        if list(map(type, ours)) != list(map(type, theirs)):
            raise ReplayError("steps with data of other sizes call functions with other arguments")
        rules: list[Rule | None] = []
        for a, b in zip(ours, theirs):
            if a == b or isinstance(a, bool) or (a != a and b != b):
                rules.append(None)
            elif isinstance(a, int) and isinstance(b, int):
                rules.append(self._sizes.rule(a, b))
            else:
                rules.append(self._sizes.rule_of_float(a, b))
        return rules

    def reaches(self, data: Mapping[Any, Tensor]) -> bool:
        """Data of these sizes needs no table that is larger than any that was taped."""
        sizes = self._sizes_of(data)
        return all(
            rule is None or rule(sizes) <= size
            for table, rules in self._tables.values()
            for size, rule in zip(table.shape, rules)
        )

    def _sizes_of(self, data: Mapping[Any, Tensor]) -> dict[Symbol, int]:
        return {(name, dim): data[name].shape[dim] for name, dim in self._sizes.first}

    def tape(self, data: Mapping[Any, Tensor]) -> StepTape:
        """`data` by the names that the sizes were given with."""
        sizes = self._sizes_of(data)
        key = tuple(sizes.values())
        if key not in self._made:
            ops = [
                self._stretched(op, self._rules[number], sizes) if number in self._rules else op
                for number, op in enumerate(self.base.ops)
            ]
            tables = {ref: self._cut(*kept, sizes) for ref, kept in self._tables.items()}
            constants = self.base.constants | tables
            self._made[key] = replace(self.base, ops=ops, constants=constants)
        return self._made[key]

    @staticmethod
    def _cut(table: Tensor, rules: Sequence[Rule | None], sizes: Mapping[Symbol, int]) -> Tensor:
        ends = [None if rule is None else int(rule(sizes)) for rule in rules]
        return table[tuple(slice(end) for end in ends)]

    def _stretched(self, op: Op, rules: Sequence[Rule | None], sizes: Mapping[Symbol, int]) -> Op:
        left = iter(rules)

        def change(number: float) -> float:
            rule = next(left)
            if rule is None:
                return number
            value = rule(sizes)
            if not isinstance(number, int):
                return float(value)
            if value != int(value):
                raise ReplayError(f"{op.name} would have to be called with {float(value):.3g}")
            return int(value)

        args, kwargs = replace_leaves((op.args, op.kwargs), int | float, change)  # type: ignore[arg-type]
        return replace(op, args=args, kwargs=kwargs)


def widest(tables: Sequence[Tensor]) -> Tensor:
    """The largest of them, if each of the others is its beginning."""
    if not is_table(tables):
        raise ReplayError("a tensor whose size differs between steps cannot be traced")
    return max(tables, key=lambda table: table.numel())


def begins_with(table: Tensor, other: Tensor) -> bool:
    if table.dim() != other.dim() or table.dtype != other.dtype or table.device != other.device:
        return False
    block = table[tuple(slice(size) for size in other.shape)]
    return block.shape == other.shape and torch.equal(block, other)


def is_table(values: Sequence[Tensor]) -> bool:
    """Tensors of several sizes that depend on nothing else: a smaller one is the beginning of a larger one."""
    largest = max(values, key=lambda value: value.numel())
    sizes = {tuple(value.shape) for value in values}
    return len(sizes) > 1 and all(begins_with(largest, value) for value in values)


def same_functions(one: StepTape, other: StepTape) -> bool:
    """Two steps that ran the same functions on the same values, one after the other."""
    return len(one.ops) == len(other.ops) and all(
        (a.name, a.inputs, a.outputs) == (b.name, b.inputs, b.outputs)
        for a, b in zip(one.ops, other.ops)
    )


def numbers_in(tree: Any) -> list[float]:
    """All numbers in nested tuples, lists, dicts and slices, in the order in which `replace` meets them."""
    found: list[float] = []

    def note(number: float) -> float:
        found.append(number)
        return number

    replace_leaves(tree, int | float, note)  # type: ignore[arg-type]
    return found
