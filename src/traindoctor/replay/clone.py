"""A copy of the script's optimizer over other tensors: the same class, the same rule, the same state."""

from __future__ import annotations

import inspect
from collections import OrderedDict, defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from traindoctor.errors import ReplayError

BETA_NAMES = (("beta1", "beta2"), ("beta_1", "beta_2"), ("b1", "b2"))
# What torch's optimizers call their means of gradients, and of squares.
FIRST_MOMENTS = frozenset("exp_avg momentum_buffer exp_inf grad_avg mu".split())
SECOND_MOMENTS = frozenset("exp_avg_sq max_exp_avg_sq square_avg sum".split())
# Fast paths are not written for float64 copies on the CPU; every optimizer has the plain one.
PLAIN = {"foreach": False, "fused": None, "capturable": False}


def copy_state(value: Any, *, dtype: torch.dtype | None = None, device: Any = None) -> Any:
    """A deep copy of an optimizer's state. `load_state_dict` would share tensors of equal dtype.

    Counters (0-dim tensors) keep their dtype: they are counted, not calculated with.
    """
    if isinstance(value, Tensor):
        wider = dtype if value.is_floating_point() and value.dim() else None
        copied = value.detach().to(device=device, dtype=wider)
        return copied.clone() if copied.data_ptr() == value.data_ptr() else copied
    if isinstance(value, Mapping):
        return {k: copy_state(v, dtype=dtype, device=device) for k, v in value.items()}
    if isinstance(value, list | tuple) and type(value) in (list, tuple):
        return type(value)(copy_state(v, dtype=dtype, device=device) for v in value)
    return value


def group_settings(group: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a parameter group, without its parameters."""
    return {
        key: float(v.detach()) if isinstance(v, Tensor) and v.numel() == 1 else v
        for key, v in group.items()
        if key != "params"
    }


def betas_of(group: Mapping[str, Any]) -> tuple[float, float] | None:
    """Adam's two decay rates, whatever an optimizer of the user's own calls them: betas, beta1 and beta2, b1 and b2."""
    given = group.get("betas")
    if given is None:
        for first, second in BETA_NAMES:
            if first in group and second in group:
                given = (group[first], group[second])
    try:
        one, two = (float(beta) for beta in given[:2])  # type: ignore[index]
    except (TypeError, ValueError):
        return None
    return one, two


class OptimizerClone:
    """Steps other tensors by the rule of `original`'s class, without a hook firing anywhere.

    >>> clone = OptimizerClone(type(optimizer), vars(optimizer), settings, tensors, state)
    >>> clone.step(gradients)

    `tensors[i][j]` stands for parameter j of group i; `state[i][j]` is its state (copied here).
    """

    def __init__(
        self,
        kind: type[torch.optim.Optimizer],
        attributes: Mapping[str, Any],
        settings: Sequence[Mapping[str, Any]],
        tensors: Sequence[Sequence[Tensor]],
        state: Sequence[Sequence[Mapping[str, Any]]],
        *,
        dtype: torch.dtype | None = None,
    ) -> None:
        self.rule = inspect.unwrap(kind.step)
        self.optimizer = object.__new__(kind)
        # An optimizer of the user's own may keep more than groups and state; `step` and its like are
        # wrappers that schedulers put on the instance.
        own = {
            key: value
            for key, value in attributes.items()
            if not callable(value) and "hook" not in key
        }
        self.optimizer.__dict__.update(own)
        for name in ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks"):
            self.optimizer.__dict__[name] = OrderedDict()
        self.tensors = [list(group) for group in tensors]
        self.optimizer.param_groups = [
            {**group_settings(setting), **_plain(setting), "params": list(group)}
            for setting, group in zip(settings, self.tensors)
        ]
        self.optimizer.state = defaultdict(dict)
        for group, states in zip(self.tensors, state):
            for tensor, one in zip(group, states):
                if one:
                    self.optimizer.state[tensor] = copy_state(
                        one, dtype=dtype, device=tensor.device
                    )

    @property
    def groups(self) -> list[dict[str, Any]]:
        return self.optimizer.param_groups

    def forget(self) -> None:
        """A fresh state, as on the first step."""
        self.optimizer.state = defaultdict(dict)

    @torch.no_grad()
    def rescale(self, factor: float) -> None:
        """The state of gradients that had been longer by the factor all along."""
        for state in self.optimizer.state.values():
            # RMSprop gathers what is divided already.
            divided = "square_avg" in state
            for key, value in state.items():
                power = 1 if key in FIRST_MOMENTS else 2 if key in SECOND_MOMENTS else 0
                if divided and key == "momentum_buffer":
                    continue
                if power and isinstance(value, Tensor):
                    value.mul_(factor**power)

    @torch.no_grad()
    def step(self, gradients: Sequence[Sequence[Tensor | None]]) -> None:
        for group, ones in zip(self.tensors, gradients):
            for tensor, gradient in zip(group, ones):
                tensor.grad = None if gradient is None else gradient.to(tensor.dtype)
        try:
            self.rule(self.optimizer)
        except Exception as error:
            raise ReplayError(
                f"{type(self.optimizer).__name__}.step could not be repeated on copies: {error}"
            ) from error
        finally:
            for group in self.tensors:
                for tensor in group:
                    tensor.grad = None


def _plain(setting: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in PLAIN.items() if key in setting}


def clone_of(
    optimizer: torch.optim.Optimizer, *, dtype: torch.dtype | None = None
) -> OptimizerClone:
    """A clone over copies of the optimizer's own parameters, with its state as it is now."""
    tensors = [[_copy(p, dtype) for p in group["params"]] for group in optimizer.param_groups]
    state = [
        [optimizer.state.get(p, {}) for p in group["params"]] for group in optimizer.param_groups
    ]
    return OptimizerClone(
        type(optimizer), vars(optimizer), optimizer.param_groups, tensors, state, dtype=dtype
    )


def _copy(tensor: Tensor, dtype: torch.dtype | None) -> Tensor:
    local = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    wider = dtype if local.is_floating_point() else None
    return local.detach().to(wider or local.dtype).clone()
