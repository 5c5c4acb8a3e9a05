"""The values that an unknown optimizer keeps, copied whole: plain values, containers and tensors of its own.

A parameter becomes a Slot, its place in the groups: the copy is then stepped over other tensors. An object that a copy
would share with the script (another optimizer, a model, a generator, a view of a weight) is refused, with its name.
"""

from __future__ import annotations

from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from traindoctor.experiment.closed_code import Open
from traindoctor.experiment.settings import NotPlain, plain

# Around steps and state dicts; those around steps are judged elsewhere.
HOOKS = tuple(
    f"_optimizer_{what}_{when}_hooks"
    for what in ("step", "state_dict", "load_state_dict")
    for when in ("pre", "post")
)
EMPTY_KINDS = (None, dict, list, set, int, float, bool)
# Quantised moments: the next step depends on tables and kernels that float64 does not repeat.
QUANTISED = (torch.int8, torch.uint8)


@dataclass(frozen=True)
class Slot:
    """Parameter `place` of group `group`."""

    group: int
    place: int
    is_parameter: bool
    requires_grad: bool


def copy_tree(value: Any, leaf: Callable[[Any, str], Any], name: str, memo: dict[int, Any]) -> Any:
    """Containers of Python's own kinds are made anew, the same object once; `leaf` copies everything else."""
    if id(value) in memo:
        return memo[id(value)][1]
    kind = type(value)

    def inside(one: Any, key: Any = None) -> Any:
        spoken = f"{name}[{key!r}]" if isinstance(key, str | int) else name
        return copy_tree(one, leaf, spoken, memo)

    made: Any
    if kind in (dict, OrderedDict) or (
        kind is defaultdict and value.default_factory in EMPTY_KINDS
    ):
        made = defaultdict(value.default_factory) if kind is defaultdict else kind()
        memo[id(value)] = (value, made)
        made.update({inside(key): inside(one, key) for key, one in value.items()})
    elif kind in (list, deque):
        made = deque(maxlen=value.maxlen) if kind is deque else []
        memo[id(value)] = (value, made)
        made.extend(inside(one, i) for i, one in enumerate(value))
    elif kind in (tuple, set, frozenset):
        made = kind(inside(one) for one in value)
    else:
        made = leaf(value, name)
    memo[id(value)] = (value, made)
    return made


def copy_object(optimizer: Optimizer) -> dict[str, Any]:
    """All attributes of the optimizer, its groups and state among them. Raises Open."""
    slots: dict[int, Slot] = {}
    memory: set[int] = set()
    for i, group in enumerate(vars(optimizer)["param_groups"]):
        for j, p in enumerate(group["params"]):
            slots[id(p)] = Slot(i, j, type(p) is nn.Parameter, p.requires_grad)
            memory.add(p.untyped_storage().data_ptr())
    kind = type(optimizer).__name__

    def leaf(value: Any, name: str) -> Any:
        if id(value) in slots:
            return slots[id(value)]
        if not isinstance(value, Tensor):
            try:
                return plain(value)
            except NotPlain as error:
                raise Open(f"{kind} keeps {error} in {name}, which a copy would share") from None
        if type(value) is not Tensor or value.layout is not torch.strided or value.requires_grad:
            raise Open(f"{kind} keeps a {type(value).__name__} of another place in {name}")
        if value.dtype in QUANTISED and value.dim():
            raise Open(f"{kind} keeps quantised numbers in {name}")
        # Two tensors over the same memory would not be so in a copy.
        where = value.untyped_storage().data_ptr()
        if where in memory and value.numel():
            raise Open(f"{kind} keeps a view of other tensors in {name}")
        memory.add(where)
        return value.detach().clone()

    memo: dict[int, Any] = {}
    return {
        name: copy_tree(value, leaf, name, memo)
        for name, value in vars(optimizer).items()
        if name != "step" and name not in HOOKS
    }


def widened(value: Tensor, dtype: torch.dtype | None, device: torch.device) -> Tensor:
    """A copy on the device. Counters (0-dim tensors) keep their dtype: they are counted, not calculated with."""
    wider = dtype if value.is_floating_point() and value.dim() else None
    return value.detach().to(device=device, dtype=wider or value.dtype, copy=True)


def build_object(
    kind: type[Optimizer],
    attributes: Mapping[str, Any],
    parameters: Sequence[Sequence[Tensor]],
    *,
    dtype: torch.dtype | None,
) -> Optimizer:
    """The copy over other parameters. No method of the class is called."""

    def leaf(value: Any, name: str) -> Any:
        if isinstance(value, Slot):
            return parameters[value.group][value.place]
        return widened(value, dtype, value.device) if isinstance(value, Tensor) else value

    memo: dict[int, Any] = {}
    optimizer = object.__new__(kind)
    for name, value in attributes.items():
        vars(optimizer)[name] = copy_tree(value, leaf, name, memo)
    vars(optimizer).update({name: OrderedDict() for name in HOOKS})
    for parameter, state in optimizer.state.items():
        if isinstance(parameter, Tensor) and not parameter.dim() and isinstance(state, dict):
            for name, value in state.items():  # of a single number its moments look like counters
                if isinstance(value, Tensor) and value.is_floating_point():
                    state[name] = value.to(parameter.dtype)
    return optimizer
