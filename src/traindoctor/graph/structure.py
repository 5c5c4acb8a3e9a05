"""What a tape computes, read from its ops: who depends on whom, attention, skip paths, scalar factors.

Nothing here runs the tape; values come from a replay that the exam makes.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from traindoctor.graph.origins import argument, depends_on
from traindoctor.tape.operators import (
    ATTENTION_CALLS,
    BLOCKING,
    EMBEDDINGS,
    JOINING,
    ON_WEIGHTS,
    PRODUCTS,
)
from traindoctor.tape.ops import DATA, PARAMETER, Op, Ref
from traindoctor.tape.tape import StepTape


@dataclass(frozen=True, eq=False)
class Attention:
    """One attention: a torch function, or a softmax whose weights enter a product with data."""

    kind: str
    op: Op
    """The torch function, or the softmax."""
    path: tuple[Op, ...] = ()
    """From the softmax's output to the product: dropout, masks, views."""
    product: Op | None = None
    weights: Ref | None = None
    """What enters the product."""

    @property
    def inputs(self) -> tuple[Ref, ...]:
        return self.op.inputs

    @property
    def output(self) -> Ref:
        made = (self.product or self.op).outputs[0]
        assert made is not None
        return made


class Structure:
    """Ancestry of every value of a tape, as one bit set per Ref."""

    def __init__(self, tape: StepTape) -> None:
        self.tape = tape
        self._above: dict[Ref, int] = {}
        self._written: dict[int, int] = {}
        for op in tape.ops:
            bits = 0
            for source in op.inputs:
                bits |= self.above(source) | 1 << source.index
            for ref in (*op.outputs, *op.writes):
                if ref is not None:
                    self._above[ref] = self._above.get(ref, 0) | (bits & ~(1 << ref.index))
            for ref in op.writes:
                storage = tape.geometry[ref.index].storage
                self._written[storage] = self._written.get(storage, 0) | bits

    def above(self, ref: Ref) -> int:
        """Bits of all Refs that this one depends on."""
        storage = self.tape.geometry[ref.index].storage
        return self._above.get(ref, 0) | self._written.get(storage, 0)

    def depends(self, ref: Ref, on: Ref) -> bool:
        return bool(self.above(ref) >> on.index & 1) or ref == on

    def shape(self, ref: Ref) -> tuple[int, ...]:
        return self.tape.geometry[ref.index].size

    @cached_property
    def users(self) -> dict[Ref, list[Op]]:
        found: dict[Ref, list[Op]] = {}
        for op in self.tape.ops:
            for ref in op.inputs:
                found.setdefault(ref, []).append(op)
        return found

    @cached_property
    def data_bits(self) -> int:
        """Everything that comes of the batch: its tensors and the look-ups by it."""
        bits = 0
        for given in self.tape.data:
            bits |= 1 << given.index
        for op in self.tape.ops:
            if op.kind in EMBEDDINGS:
                for ref in op.outputs:
                    if ref is not None:
                        bits |= 1 << ref.index
        return bits

    def of_data(self, ref: Ref) -> bool:
        return bool((self.above(ref) | 1 << ref.index) & self.data_bits)

    @cached_property
    def attentions(self) -> list[Attention]:
        found = []
        for op in self.tape.ops:
            if op.kind in ATTENTION_CALLS:
                found.append(Attention(op.kind, op))
            elif op.kind == "softmax" and op.outputs and op.outputs[0] is not None:
                hit = self._product_of(op.outputs[0])
                if hit is not None:
                    path, product, weights = hit
                    found.append(Attention("softmax", op, path, product, weights))
        return found

    @cached_property
    def weighted_sums(self) -> list[Attention]:
        """Softmaxes whose weights multiply activations that are then added up over one axis: (w * v).sum(1)."""
        found = []
        for op in self.tape.ops:
            made = op.outputs[0] if op.outputs else None
            if op.kind != "softmax" or made is None or not depends_on(self.tape, made) & PARAMETER:
                continue
            for ref, path in self._along(made):
                summed = self._summed_with(ref)
                if summed is not None:
                    found.append(Attention("weighted sum", op, path, summed, ref))
                    break
        return found

    def _summed_with(self, weights: Ref) -> Op | None:
        """The sum over one axis behind a product of these weights with activations of the batch."""
        for op in self.users.get(weights, ()):
            others = [ref for ref in op.inputs if ref != weights]
            made = op.outputs[0] if op.outputs else None
            if op.kind != "mul" or len(others) != 1 or made is None:
                continue
            if depends_on(self.tape, others[0]) != DATA | PARAMETER:
                continue
            for user in self.users.get(made, ()):
                if user.kind == "sum" and isinstance(argument(user, 1, "dim"), int):
                    return user
        return None

    def _along(self, ref: Ref) -> Iterator[tuple[Ref, tuple[Op, ...]]]:
        """A value and what views, dropout and masks make of it, each with the ops on the way."""
        queue: list[tuple[Ref, tuple[Op, ...]]] = [(ref, ())]
        seen = {ref}
        while queue:
            ref, path = queue.pop(0)
            yield ref, path
            for op in self.users.get(ref, ()):
                passes = op.kind in ON_WEIGHTS and not op.reflected
                out = op.outputs[0] if op.outputs else None
                if passes and out is not None and out not in seen and len(path) < 12:
                    seen.add(out)
                    queue.append((out, (*path, op)))

    def _product_of(self, weights: Ref) -> tuple[tuple[Op, ...], Op, Ref] | None:
        """Follows weights through views, dropout and masks to the product with data that they enter."""
        for ref, path in self._along(weights):
            for op in self.users.get(ref, ()):
                if op.kind in PRODUCTS:
                    others = [r for r in op.inputs if r != ref]
                    if others and all(self.of_data(other) for other in others):
                        return path, op, ref
        return None

    @cached_property
    def additions(self) -> list[tuple[Op, Ref, Ref]]:
        """Sums of two values of the batch that have the same shape: (op, one, other). A gated cell is one too.

        Only those that the loss depends on: a sum that nobody uses (a hook that does not return it) adds nothing.
        """
        roots = [root.ref for root in self.tape.roots if root.ref is not None]
        used = set(map(id, self.tape.needed(roots)))
        found = []
        for op in self.tape.ops:
            refs = [ref for ref in op.args[:2] if isinstance(ref, Ref)]
            if op.kind in JOINING and len(refs) == 2 and id(op) in used:
                one, other = refs
                alike = op.kind != "add" or self.shape(one) == self.shape(other)
                if alike and one != other:
                    if self.of_data(one) and self.of_data(other):
                        found.append((op, one, other))
        return found

    def bypass(self, inside: Ref) -> tuple[Op, Ref, Ref] | None:
        """The first sum that joins a value through `inside` with one around it: (op, through, around)."""
        for op, one, other in self.additions:
            for through, around in ((one, other), (other, one)):
                if self.depends(through, inside) and not self.depends(around, inside):
                    shared = self.above(inside) & (self.above(around) | 1 << around.index)
                    if shared and self._leads_around(around, self.above(inside)):
                        return op, through, around
        return None

    def _leads_around(self, ref: Ref, inside: int) -> bool:
        """An MLP beside the attention on the same input, or the other way round, is no way around either.

        `inside` are the Refs that the part depends on: a way from one of them through no attention and no activation,
        or one from other data (a memory that is carried along).
        """
        queue, seen, blocked = [ref], {ref}, False
        while queue:
            ref = queue.pop()
            if inside >> ref.index & 1:
                return True
            op = self.tape.producer.get(ref)
            if op is not None and op.kind in BLOCKING:
                if self.above(ref) & self.data_bits & ~inside:
                    return True
                blocked = True
                continue
            above = [r for r in op.inputs if r not in seen and self.of_data(r)] if op else []
            seen.update(above)
            queue += above
        return not blocked

    def scalar_factor(self, op: Op) -> float | None:
        """The number a scaling op multiplies by; None where it is no single number."""
        if not op.scales:
            return None
        for place, value in enumerate(op.args[:2]):
            number = self._number(value)
            if number is not None:
                if op.kind == "div":
                    return 1.0 / number if place == 1 and number else None
                return number
        return None

    def factor_in_place(self, ref: Ref) -> float:
        """What a value was multiplied by after it was made: `scores *= scale`."""
        product = 1.0
        for op in self._writers.get(ref, ()):
            product *= self.scalar_factor(op) or 1.0
        return product

    @cached_property
    def _writers(self) -> dict[Ref, list[Op]]:
        found: dict[Ref, list[Op]] = {}
        for op in self.tape.ops:
            for ref in op.writes:
                found.setdefault(ref, []).append(op)
        return found

    def _number(self, value: Any) -> float | None:
        if isinstance(value, bool) or value is None:
            return None
        if isinstance(value, int | float):
            return float(value)
        constant = self.tape.constants.get(value) if isinstance(value, Ref) else None
        if isinstance(constant, Tensor) and constant.numel() == 1:
            return float(constant)
        return None

    def up(self, ref: Ref) -> Iterator[tuple[Ref, Op]]:
        """From a value upwards along its data operand: each value with the op that made it."""
        producer = self.tape.producer
        seen: set[Ref] = set()
        while ref in producer and ref not in seen:
            seen.add(ref)
            op = producer[ref]
            yield ref, op
            above = [r for r in op.inputs if self.of_data(r)]
            if len(above) != 1:
                return
            ref = above[0]


def meant_to_move(tape: StepTape, name: str) -> Tensor | None:
    """1 where a table may move, None: everywhere. The row of padding_idx has no gradient and is meant to have none."""
    leaf = tape.parameters[name]
    for op in tape.ops:
        if op.kind == "embedding" and leaf.ref in op.inputs:
            row = op.kwargs.get("padding_idx", op.args[2] if len(op.args) > 2 else None)
            if isinstance(row, int) and row >= 0:
                mask = torch.ones_like(leaf.value, dtype=torch.float64)
                mask[row] = 0
                return mask
    return None
