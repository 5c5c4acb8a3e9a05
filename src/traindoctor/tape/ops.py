"""What a tape is made of: references in place of tensors, and one Op per torch function."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from traindoctor.ground.collective import Collective
from traindoctor.ground.nested import leaves_in
from traindoctor.ground.torch_private import OpOverload, OpOverloadPacket
from traindoctor.tape.operators import SCALING, operator_of

# What a value depends on: the trainable parameters, the data of the step, or neither (0).
PARAMETER = 1
DATA = 2


@dataclass(frozen=True, slots=True)
class Ref:
    """Stands for one tensor object of the step. In-place functions keep the object, so they keep the Ref."""

    index: int


@dataclass(slots=True)
class Geometry:
    """Where a tensor lies in its storage."""

    storage: int
    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int

    @classmethod
    def of(cls, tensor: Tensor, storage: int) -> Geometry:
        return cls(storage, tuple(tensor.size()), tensor.stride(), int(tensor.storage_offset()))


@dataclass(eq=False)
class FunctionCall:
    """One call of an autograd.Function: its class, and its arguments with Refs for tensors."""

    cls: type
    number: int
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    line: str | None = None
    module: str | None = None
    """The module whose forward called it."""
    differentiable: bool = False
    """Some output was seen outside with a gradient history of this Function."""
    outputs: dict[Ref, int] = field(default_factory=dict)
    """Ref inside -> which output of apply it is, for outputs that were seen outside."""
    escapes: list[str] = field(default_factory=list)
    """Why the tape cannot see inside: values left torch (numpy, data_ptr, ...)."""
    parent: FunctionCall | None = None
    forward_log: list[Collective] = field(default_factory=list)
    """Collectives that its forward pass used, in order."""
    backward_log: list[Collective] = field(default_factory=list)
    """Those of its backward pass in the script's own backward passes."""

    @property
    def joins_ranks(self) -> bool:
        """Only the whole Function can be run again: its backward joins gradients of several ranks, which no op shows."""
        if self.backward_log:
            return True
        # torch's own kernels have no derivative that a replay could look up; a checkpoint only calls other code.
        kernels = not self.is_users and self.cls.__module__ != "torch.utils.checkpoint"
        return kernels and bool(self.forward_log)

    @property
    def name(self) -> str:
        return self.cls.__name__

    @property
    def is_users(self) -> bool:
        """Not torch's own (checkpointing is a Function too)."""
        return not self.cls.__module__.startswith(("torch.", "torch_", "traindoctor."))


@dataclass(eq=False, slots=True)
class Op:
    """One torch function of the step, with Refs in place of tensors."""

    number: int
    name: str
    func: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    inputs: tuple[Ref, ...]
    outputs: tuple[Ref | None, ...]
    writes: tuple[Ref, ...] = ()
    """Tensors changed in place."""
    depends_on: int = 0
    grad_enabled: bool = True
    autocast: tuple[Any, ...] | None = None
    segment: int = 0
    """Number of backward passes before it: autocast's cache does not outlive one."""
    rng: tuple[tuple[str, Tensor], ...] = ()
    module: str | None = None
    line: str | None = None
    """The script's line, `train.py:54`."""
    package_line: str | None = None
    """The innermost line that is neither torch's nor ours, if it is not the script's."""
    function: FunctionCall | None = None
    index: Tensor | None = None
    """A copy of the integer tensor that selects (embedding, gather, targets of a loss)."""
    synthetic: bool = False
    """Not a call of the script: a view that ties an alias to its storage."""
    kind: str = field(init=False)
    """What it computes, however it is spelled (tape/operators.py); `name` is for messages."""
    in_place: bool = field(init=False)
    reflected: bool = field(init=False)
    """Its operands stand the other way round: `1 / x` is a function of (x, 1)."""

    def __post_init__(self) -> None:
        self.kind, self.in_place, self.reflected = operator_of(self.name)

    @property
    def operands(self) -> tuple[Ref, ...]:
        """Its tensors in the order of the formula: of `a - b` first a, whoever's method it is."""
        return self.inputs[::-1] if self.reflected else self.inputs

    @property
    def scales(self) -> bool:
        """A value times a factor, or by a divisor: `1 / x` is neither."""
        return self.kind in SCALING and not self.reflected

    @property
    def nearest_line(self) -> str | None:
        """The script's line, or that of the package it called."""
        return self.line or self.package_line

    @property
    def users_function(self) -> FunctionCall | None:
        """The outermost autograd.Function of the user's that the op ran in."""
        return self._outermost(lambda call: call.is_users)

    @property
    def unit(self) -> FunctionCall | None:
        """The outermost Function that may have to run as one: the user's, or one that joins ranks."""
        return self._outermost(lambda call: call.is_users or call.joins_ranks)

    def _outermost(self, chosen: Callable[[FunctionCall], bool]) -> FunctionCall | None:
        found, call = None, self.function
        while call is not None:
            found = call if chosen(call) else found
            call = call.parent
        return found

    @property
    def joins_ranks(self) -> bool:
        unit = self.unit
        return unit is not None and unit.joins_ranks

    @property
    def collective(self) -> Collective | None:
        """What is handed out in its place, if it is a collective."""
        owner = getattr(self.func, "__self__", None)
        return owner if isinstance(owner, Collective) else None


# Operators that come with torch, and libraries whose backward passes are their own tests' affair.
TORCHS_OWN = frozenset({"aten", "prim", "prims", "torch", "_c10d_functional", "c10d", "quantized"})


def is_foreign(op: Op) -> bool:
    """An operator that somebody registered (a custom op of torch, a C++ extension): its backward is theirs."""
    func = op.func
    if isinstance(func, OpOverload):
        return func.namespace not in TORCHS_OWN
    if isinstance(func, OpOverloadPacket):
        return func._qualified_op_name.partition("::")[0] not in TORCHS_OWN
    return False


def op_name(func: Callable[..., Any]) -> str:
    """`add`, `__getitem__`, `T` (for the property), `cross_entropy`."""
    name = getattr(func, "__name__", None) or str(func)
    if name in ("__get__", "__set__", "__delete__"):
        prefix = "" if name == "__get__" else name.strip("_") + "_"
        return prefix + getattr(getattr(func, "__self__", None), "__name__", name)
    return name.removesuffix(".default")


def refs_in(tree: Any) -> Iterator[Ref]:
    return leaves_in(tree, Ref)


@dataclass(slots=True)
class Leaf:
    """A trainable parameter at the taped step."""

    ref: Ref
    value: Tensor
    hooked: bool = False
    """It has gradient hooks of the user's: what arrives in .grad is not what autograd computed."""
    passing: bool = False
    """No `nn.Parameter` and not met before: a value that gradients are collected at (a cache of features), no weight."""


@dataclass(slots=True)
class Root:
    """What the script called backward on. `scale` is a GradScaler's factor inside it."""

    ref: Ref | None
    value: float
    scale: float = 1.0
    gradient: Tensor | None = None
    """The cotangent the script gave; None stands for 1."""
    num_ops: int = 0
    """Ops before it: a later one may write over it (the mean over ranks, for the log)."""


@dataclass(frozen=True, slots=True)
class Escape:
    """Where a value that depends on parameters left torch."""

    function: str
    line: str | None
    module: str | None
    values: tuple[Ref, ...] = ()
    """What left."""


@dataclass(slots=True)
class Read:
    """A scalar the script read."""

    ref: Ref
    value: float


def is_float(tensor: Tensor) -> bool:
    return torch.is_floating_point(tensor) or torch.is_complex(tensor)
