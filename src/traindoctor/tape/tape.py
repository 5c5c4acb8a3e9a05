"""One training step, written down: plain data, and what follows from it alone."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from torch import Tensor

from traindoctor.tape.operators import SLOPES
from traindoctor.tape.ops import Escape, FunctionCall, Geometry, Leaf, Op, Read, Ref, Root, refs_in
from traindoctor.tape.unit_clipping import Units


@dataclass(eq=False)
class StepTape:
    """What one optimizer step computed, from the batch to the loss, all its micro-batches."""

    step: int
    ops: list[Op]
    geometry: list[Geometry]
    """Ref.index -> where it lies."""
    parameters: dict[str, Leaf]
    constants: dict[Ref, Tensor]
    data: list[Ref]
    """Constants that came with the batch, in the order of their first use."""
    roots: list[Root]
    given: dict[str, Tensor | None]
    fresh: dict[str, Tensor | None]
    """What this rank's backward passes computed, before any other rank's is joined to it."""
    added: dict[str, Tensor | None]
    """What they left in .grad, less what was there before: with several ranks, a mean over them."""
    reads: list[Read] = field(default_factory=list)
    gaps: list[str] = field(default_factory=list)
    """Why the tape may not be the whole step."""
    escapes: list[Escape] = field(default_factory=list)
    bytes: int = 0
    world_size: int = 1
    arrived: tuple[float, float] | None = None
    """Factor and cosine of .grad at the optimizer's step against the last backward pass: unscaling, clipping."""
    units: dict[str, Units] = field(default_factory=dict)
    """Where that turned the gradient and none of its tensors or rows: their norms before and after."""

    swapped: dict[str, str] = field(default_factory=dict)
    """Parameter -> the one whose gradient it got at the optimizer's step."""
    stage: int = 0
    """Whose step it is: the number of the optimizer that made it, in the order of their first steps."""
    compiled: float | None = None
    """Compiled code ran in the step, and the tape has it uncompiled: the largest relative difference of results."""
    hooked_values: list[str] = field(default_factory=list)
    """Where the script hangs gradient hooks on values that are no parameters."""

    sources: dict[Ref, tuple[tuple[str, int, int], ...]] = field(default_factory=dict)
    """Of data: by which call, or in which variable of the script, it (or each of its parts, one after the other) was seen.
    There another step has its own."""
    begins_late: bool = False
    """Something of the step with a gradient was computed before the tape began, or in an earlier step."""

    overwritten_predictions: dict[int, Ref] = field(default_factory=dict, init=False)
    """Number of an op -> the predictions that it compares with targets and that are written over later.

    Filled by whoever finds the losses (graph/loss_sites.py): nobody asks for predictions before.
    """
    memo: dict[Any, Any] = field(default_factory=dict, init=False)
    """What several exams ask of the tape and one of them has worked out; no part of a copy with other ops."""

    @cached_property
    def producer(self) -> dict[Ref, Op]:
        """The op that made a Ref: the first that has it at all, and not as one of its inputs.

        So the makers of an op's inputs stand before it, whatever functions return: `x.to(dtype)` that changes nothing
        gives x itself, and made nothing. A walk from maker to maker ends.
        """
        made: dict[Ref, Op] = {}
        met: set[Ref] = {*self.constants, *self._leaf_names}
        for op in self.ops:
            met.update(op.inputs)
            for ref in op.outputs:
                if ref is not None and ref not in met:
                    made[ref] = op
                    met.add(ref)
        return made

    @cached_property
    def written(self) -> dict[Ref, int]:
        """What the ops depend on that wrote to a Ref after it was made (`shifted[:, 1:] = labels[:, :-1]`)."""
        found: dict[Ref, int] = {}
        for op in self.ops:
            for ref in op.writes:
                found[ref] = found.get(ref, 0) | op.depends_on
        return found

    @cached_property
    def differentiated(self) -> frozenset[Ref]:
        """What the step itself asks for slopes at (a penalty on gradients, forces): they are part of its loss."""
        asked = [op for op in self.ops if op.kind in SLOPES]
        given = [op.args[1] if len(op.args) > 1 else op.kwargs["inputs"] for op in asked]
        return frozenset(ref for inputs in given for ref in refs_in(inputs))

    @cached_property
    def functions(self) -> list[FunctionCall]:
        """Calls of the user's own autograd.Functions, in order."""
        calls = [op.users_function for op in self.ops]
        return list(dict.fromkeys(call for call in calls if call is not None))

    @cached_property
    def conditional(self) -> bool:
        """Other ranks' values stand on the way to the loss: a replay holds them fixed."""
        roots = [root.ref for root in self.roots if root.ref is not None]
        last = max((root.num_ops for root in self.roots), default=0)
        return any(
            op.number < last
            and (op.joins_ranks or (op.collective is not None and op.collective.brings_others))
            for op in self.needed(roots)
        )

    @cached_property
    def joined(self) -> frozenset[str]:
        """Parameters whose gradients hold what other ranks' backward passes sent."""
        calls = {op.unit for op in self.ops if op.joins_ranks}
        given = [r for call in calls if call is not None for r in refs_in((call.args, call.kwargs))]
        reached = {*given, *(ref for op in self.needed(given) for ref in op.inputs)}
        return frozenset(name for name, leaf in self.parameters.items() if leaf.ref in reached)

    @property
    def loss(self) -> float:
        """What the script called backward on, a scaler's factor divided out."""
        return sum(root.value / root.scale for root in self.roots)

    def name_of(self, ref: Ref) -> str | None:
        """The parameter's name, if the Ref is one."""
        return self._leaf_names.get(ref)

    @cached_property
    def _leaf_names(self) -> dict[Ref, str]:
        return {leaf.ref: name for name, leaf in self.parameters.items()}

    @cached_property
    def data_set(self) -> frozenset[Ref]:
        return frozenset(self.data)

    def needed(self, wanted: Iterable[Ref]) -> list[Op]:
        """The ops that the wanted values depend on, in order; writes into shared memory included."""
        storages = {self.geometry[ref.index].storage for ref in wanted}
        chosen = []
        for op in reversed(self.ops):
            touched = (*op.outputs, *op.writes)
            if any(r is not None and self.geometry[r.index].storage in storages for r in touched):
                chosen.append(op)
                storages.update(self.geometry[ref.index].storage for ref in op.inputs)
                if op.unit is not None:
                    storages.update(self._argument_storages(op.unit))
        return chosen[::-1]

    def _argument_storages(self, call: FunctionCall) -> set[int]:
        return {self.geometry[r.index].storage for r in refs_in((call.args, call.kwargs))}
