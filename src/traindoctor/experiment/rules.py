"""Given this optimizer, is there a rule that predicts its step on other tensors?

    rule = rule_of(optimizer)  # ReplayError: "not possible for this optimizer: ..."
    stepper = rule.over(tensors, dtype=torch.float64)
    stepper.step(gradients)

The script's own object is never stepped and never held. torch's own classes are repeated by a fresh object of torch's;
others by a deep copy, where their code was read and shown to reach nothing outside of it. All others: no rule.
"""

from __future__ import annotations

import inspect
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from traindoctor.errors import ReplayError
from traindoctor.experiment.closed_code import Open, read_step
from traindoctor.experiment.closed_state import Slot, build_object, copy_object, widened
from traindoctor.experiment.settings import NotPlain, group_settings, plain
from traindoctor.experiment.stepper import Stepper
from traindoctor.experiment.torch_rules import (
    BY_MATRIX,
    PLAIN_PATH,
    fresh,
    is_beyond,
    is_torch_class,
    known_state,
    patched_name,
)
from traindoctor.ground.memory import memory, nbytes
from traindoctor.ground.names import local
from traindoctor.ground.nested import tensors_in
from traindoctor.ground.quiet import quiet
from traindoctor.ground.torch_code import foreign_hooks, layers, replaced_step, under_hooks

REFUSED = "not possible for this optimizer: {}"
# Rounded weights say nothing of a rule that may keep the remainder somewhere else.
HALVES = (torch.float16, torch.bfloat16)
# What torch's base class, its schedulers and its scalers keep on every optimizer.
BASE = frozenset(
    """defaults state param_groups _zero_grad_profile_name _warned_capturable_if_run_uncaptured _opt_called
    _step_supports_amp_scaling""".split()
)


@dataclass(frozen=True)
class Rule:
    """How an optimizer steps from where it stands: copies and plain values, nothing that the script still holds."""

    kind: type[Optimizer]
    settings: list[dict[str, Any]]
    """Of each group."""
    state: list[list[Mapping[str, Any]]]
    """Of each parameter, for torch's own classes."""
    attributes: Mapping[str, Any] | None = None
    """All that an object of an unknown class keeps, its state included; None for torch's own classes."""

    def over(
        self, tensors: Sequence[Sequence[Tensor]], *, dtype: torch.dtype | None = None
    ) -> Stepper:
        """Steps these tensors, which stand for the parameters group by group; the state is made `dtype`."""
        try:
            with quiet():
                return self._over(tensors, dtype)
        except Open as reason:
            raise ReplayError(REFUSED.format(reason)) from None

    def _over(self, tensors: Sequence[Sequence[Tensor]], dtype: torch.dtype | None) -> Stepper:
        if self.attributes is None:
            leaves = [[tensor.detach() for tensor in group] for group in tensors]
            *_, step = layers(self.kind.step)
            optimizer = fresh(self.kind, self.settings, leaves)
            for group, states in zip(leaves, self.state):
                for leaf, state in zip(group, states):
                    if state:
                        optimizer.state[leaf] = _widened_state(state, dtype, leaf.device)
            return Stepper(optimizer, step, tensors, leaves)
        read_step(self.kind, set(self.attributes))  # what it names may have changed since
        leaves = [
            [_like(tensor, slot) for tensor, slot in zip(group, own["params"])]
            for group, own in zip(tensors, self.attributes["param_groups"])
        ]
        copy = build_object(self.kind, self.attributes, leaves, dtype=dtype)
        for own in copy.param_groups:
            own.update({key: value for key, value in PLAIN_PATH.items() if key in own})
        known = self.attributes.keys() <= BASE
        step = under_hooks(self.kind.step)
        return Stepper(copy, step, tensors, leaves, grad_mode=True, can_forget=known)


def rule_of(optimizer: Optimizer, chosen: Sequence[Sequence[Tensor]] | None = None) -> Rule:
    """The rule of all its parameters, or of the chosen ones of each group. ReplayError says why there is none."""
    try:
        return _rule_of(optimizer, chosen)
    except Open as reason:
        raise ReplayError(REFUSED.format(reason)) from None


def _rule_of(optimizer: Optimizer, chosen: Sequence[Sequence[Tensor]] | None) -> Rule:
    kind = type(optimizer)
    held = vars(optimizer)
    groups, state = held.get("param_groups"), held.get("state")
    if type(groups) is not list or not all(type(group) is dict for group in groups):
        raise Open(f"{kind.__name__} has no param_groups of its own")
    if (
        state is None
        or type(state) not in (dict, defaultdict)
        or not all(type(one) is dict for key, one in state.items() if isinstance(key, Tensor))
    ):
        raise Open(f"{kind.__name__} has no state of its own")
    if (beyond := next((c for c in kind.__mro__ if is_beyond(c)), None)) is not None:
        raise Open(f"{beyond.__name__} needs more than gradients")
    if foreign_hooks(optimizer):
        raise Open("hooks are called before or after its step")
    if replaced_step(optimizer):
        raise Open("its step was replaced on the object")
    everything = [list(group["params"]) for group in groups]
    tensors = everything if chosen is None else [list(group) for group in chosen]
    if is_torch_class(kind):
        _refuse_foreign_tensors(kind, tensors, sharded=kind.__name__ not in BY_MATRIX)
        if (patched := patched_name(kind)) is not None:
            raise Open(f"{patched} was replaced")
        return Rule(
            kind,
            [_own_settings(kind, group) for group in groups],
            [
                [_widened_state(known_state(state.get(p, {})), None, None) for p in group]
                for group in tensors
            ],
        )
    _refuse_foreign_tensors(kind, everything, sharded=False)
    partly = [list(map(id, group)) for group in tensors] != [list(map(id, g)) for g in everything]
    if partly or sum(nbytes(t) for t in tensors_in(list(held.values()))) > memory.room():
        raise Open("copies of all that it keeps would take too much memory")
    if any(p.dtype in HALVES for group in everything for p in group):
        raise Open(f"whether {kind.__name__} keeps what half precision rounds away is not known")
    if "grad_scale" in held or "found_inf" in held:
        raise Open(f"{kind.__name__} unscales gradients itself")
    read_step(kind, set(held))
    attributes = copy_object(optimizer)
    return Rule(kind, [group_settings(group) for group in groups], [], attributes)


def _refuse_foreign_tensors(
    kind: type, tensors: Sequence[Sequence[Tensor]], *, sharded: bool
) -> None:
    for parameter in (p for group in tensors for p in group):
        own = type(parameter)
        if own in (Tensor, nn.Parameter):
            continue
        if not own.__module__.startswith("torch.distributed."):
            raise Open(f"its parameters are of the class {own.__name__}")
        if not sharded:
            raise Open(
                f"its parameters are sharded over ranks, and {kind.__name__} needs them whole"
            )


def _own_settings(kind: type, group: Mapping[str, Any]) -> dict[str, Any]:
    for key in inspect.signature(kind.__init__).parameters:  # type: ignore[misc]
        try:
            plain(group.get(key) if key != "params" else None)
        except NotPlain as error:
            raise Open(f"the setting {key} of {kind.__name__} is {error}") from None
    return group_settings(group)


def _widened_state(
    state: Mapping[str, Any], dtype: torch.dtype | None, device: torch.device | None
) -> dict[str, Any]:
    return {
        key: widened(local(value), dtype, device or value.device)
        if isinstance(value, Tensor)
        else value
        for key, value in state.items()
    }


def _like(tensor: Tensor, slot: Slot) -> Tensor:
    """Over the same memory, and to a rule the same kind of tensor as the script's parameter."""
    if slot.is_parameter:
        return nn.Parameter(tensor.detach(), requires_grad=slot.requires_grad)
    return tensor.detach().requires_grad_(slot.requires_grad)
