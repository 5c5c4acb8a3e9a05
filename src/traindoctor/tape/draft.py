"""A tape in the making: the ops so far, and copies of what no replay can compute again, within a bound."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from traindoctor.errors import ReplayError
from traindoctor.ground import frames
from traindoctor.ground.memory import nbytes
from traindoctor.ground.modes import autocast_state
from traindoctor.ground.names import Names, local
from traindoctor.tape.ops import Escape, Geometry, Leaf, Op, Read, Ref, Root

# Copies a tape may hold: parameters, their gradients, data and constants. Above it no tape is made.
MAX_BYTES = 3 * 2**30


@dataclass(eq=False)
class Draft:
    """What is written down so far."""

    step: int
    names: Names
    max_bytes: int = MAX_BYTES
    bytes: int = 0
    ops: list[Op] = field(default_factory=list)
    geometry: list[Geometry] = field(default_factory=list)
    leaves: dict[str, Leaf] = field(default_factory=dict)
    constants: dict[Ref, Tensor] = field(default_factory=dict)
    data: list[Ref] = field(default_factory=list)
    gaps: list[str] = field(default_factory=list)
    escapes: list[Escape] = field(default_factory=list)
    strangers: dict[Ref, str] = field(default_factory=dict)
    """Constants with a gradient history that the tape does not know: a gap, if the loss depends on them."""
    roots: list[Root] = field(default_factory=list)
    reads: list[Read] = field(default_factory=list)
    segment: int = 0
    """Backward passes so far."""
    compiled: float | None = None
    """Some of the step ran compiled: the largest relative difference of its results to the uncompiled ones."""
    own_random: bool = False
    """The compiled code drew other random numbers: the tape is the step as it runs uncompiled."""
    hooked_values: list[str] = field(default_factory=list)
    """Lines of the script that hang a gradient hook on a value of the step that is no parameter."""
    changed: str | None = None
    """A parameter that was changed after a backward pass and before the optimizer's step."""
    complete: bool = False
    """The step's gradients are there: parameters that change now are being updated."""

    def new_ref(self, geometry: Geometry) -> Ref:
        self.geometry.append(geometry)
        return Ref(len(self.geometry) - 1)

    def append(self, op: Op, place: frames.Place | None = None) -> None:
        """Numbers the op and notes the state of torch around it."""
        op.number = len(self.ops)
        op.grad_enabled = torch.is_grad_enabled()
        # A view that only ties an alias to its memory computes nothing that autocast could change.
        op.autocast = None if op.synthetic else autocast_state()
        op.segment = self.segment
        if place is not None:
            op.line = place.line
            op.package_line = place.package_line
            op.module = None if place.module is None else self.names.of_module(place.module)
        self.ops.append(op)

    def gap(self, reason: str) -> None:
        if reason not in self.gaps:
            self.gaps.append(reason)

    def copy(self, tensor: Tensor) -> Tensor:
        tensor = local(tensor).detach()
        strided = tensor.layout == torch.strided
        if strided and tensor.numel() and not tensor.untyped_storage().nbytes():
            # FSDP2 frees and refills the memory of gathered weights: reading it now would crash.
            raise ReplayError(
                f"step {self.step} uses tensors whose memory is freed (sharded weights)"
            )
        self.bytes += nbytes(tensor)
        if self.bytes > self.max_bytes:
            raise ReplayError(
                f"repeating step {self.step} would need more than {self.max_bytes / 2**20:.0f} "
                "MiB of copies"
            )
        return tensor.clone(memory_format=torch.preserve_format)


def changed_between(name: str | None) -> str:
    """The gap of a step whose passes ran at different weights and whose gradients were added up."""
    return f"{name} was changed between the step's backward passes"
