"""Adam's moments, what eps does to them, and how hard weight decay pulls beside the gradient."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from traindoctor.events import Event, ForwardBegin, StepBegin, StepEnd
from traindoctor.experiment.settings import betas_of
from traindoctor.ground.names import local
from traindoctor.ground.trees import ModuleTrees
from traindoctor.probes.base import Cost
from traindoctor.record import RecordWriter

# Statistics need no more entries than this of one tensor: a stride over it is read.
ENTRIES = 4096
# What is measured of one parameter, in this order.
MEASURED = ("m_rms", "v_rms", "snr", "step_rms", "under_eps", "lost", "pull", "push")
# The square of a gradient under this is 0 in float32 as well.
SQUARED_IN_FLOAT32 = 1e-15


def decouples(optimizer: torch.optim.Optimizer, group: Mapping[str, Any]) -> bool:
    """Does decay shrink the weights beside the normalised step (AdamW), or join the gradient (Adam)?"""
    if "decoupled_weight_decay" in group:
        return bool(group["decoupled_weight_decay"])
    return type(optimizer).__name__.lower().removesuffix("8bit").endswith(("w", "lion", "muon"))


def moments(
    parameter: Tensor,
    gradient: Tensor | None,
    group: Mapping[str, Any],
    state: Mapping[str, Any],
    *,
    decoupled: bool,
) -> Tensor:
    """The numbers of MEASURED, after a step: the state has seen `gradient`. One tensor, nothing waited for.

    m_rms, v_rms: of the bias-corrected mean and root of the mean square of the gradient. snr: the first over the
    second, entry by entry. step_rms: update over rate, about 1 at the first step. under_eps: share of entries
    with a gradient whose denominator is under eps. lost: share of the entries with a gradient whose mean square is 0.
    pull: norm of the decay term as it enters the rule. push: norm
    of what it stands beside, the gradient or Adam's normalised step.
    """
    weight = _read(parameter)
    nothing = weight.new_tensor(math.nan)
    pull = weight.norm() * float(group.get("weight_decay") or 0.0)
    push = nothing if gradient is None else _read(gradient).norm()
    betas, found = betas_of(group), first_and_second(parameter, state)
    lost = nothing
    if found is not None and gradient is not None:
        lost = share_lost(_read(gradient), _read(found[1]))
    if found is None or betas is None:
        return torch.stack([*[nothing] * 5, lost, pull, push])
    m, v = found
    count = max(float(state.get("step", state.get("t", 1))), 1.0)
    first, second = (max(1 - float(beta) ** count, 1e-12) for beta in betas[:2])
    m, root = _read(m) / first, (_read(v) / second).sqrt()
    eps = float(group.get("eps", 0.0))
    step = m / (root + eps).clamp(min=1e-45)
    seen = root > 0
    ratio = torch.where(seen, m / root, 0.0)
    number = seen.sum()
    return torch.stack(
        [
            _rms(m),
            _rms(root),
            (ratio.square().sum() / number).sqrt(),
            _rms(step),
            (seen & (root < eps)).sum() / number,
            lost,
            pull,
            step.norm() if decoupled else push,
        ]
    )


def share_lost(gradient: Tensor, second: Tensor) -> Tensor:
    """A mean of squares has seen this gradient: where that is not 0, it is not either, unless its numbers end too early."""
    if gradient.shape != second.shape:  # of a sparse gradient only some rows are there
        return second.new_tensor(math.nan)
    felt = gradient.abs() > SQUARED_IN_FLOAT32
    # A memory in which nothing was ever written is no mean of squares.
    share = (felt & (second == 0)).sum() / felt.sum()
    return torch.where(second.any(), share, math.nan)


def first_and_second(parameter: Tensor, state: Mapping[str, Any]) -> tuple[Tensor, Tensor] | None:
    """Adam's two moments; in an optimizer of the user's own by what they are, whatever they are called.

    Factored moments (Adafactor) have other shapes and another rule.
    """
    alike = {
        key: value
        for key, value in state.items()
        if isinstance(value, Tensor) and value.shape == parameter.shape and parameter.numel() > 1
    }
    if "exp_avg" in alike and "exp_avg_sq" in alike:
        return alike["exp_avg"], alike["exp_avg_sq"]
    if len(alike) != 2 or "exp_avg" in alike or any(v.is_cuda for v in alike.values()):
        return None
    # A mean of squares is nowhere negative; a mean of gradients is, somewhere.
    squares = [key for key, value in alike.items() if bool((_read(value) >= 0).all())]
    if len(squares) != 1:
        return None
    first = next(key for key in alike if key != squares[0])
    return alike[first], alike[squares[0]]


def _read(tensor: Tensor) -> Tensor:
    tensor = local(tensor).detach()
    flat = tensor.coalesce().values().flatten() if tensor.is_sparse else tensor.flatten()
    return flat[:: max(1, flat.numel() // ENTRIES)].double()


def _rms(values: Tensor) -> Tensor:
    return values.square().mean().sqrt()


class OptimizerState:
    """By parameter the moments, over all parameters the decay ratio and the share under eps."""

    name: ClassVar[str] = "optimizer_state"
    cost: ClassVar[Cost] = "costly"
    every: ClassVar[int] = 50
    hears: ClassVar[tuple[type, ...]] = (
        ForwardBegin,
        StepBegin,
        StepEnd,
    )

    def __init__(self) -> None:
        self.trees = ModuleTrees()
        self._found: dict[str, Tensor] = {}

    def on(self, event: Event, *, due: bool) -> None:
        if isinstance(event, ForwardBegin) and event.wants_grad:
            self.trees.learn(event.module)
        elif isinstance(event, StepEnd) and due:
            # Gradients are still those of the step: zero_grad comes after it.
            self._measure(event.optimizer)
        elif isinstance(event, StepBegin):
            self._found = {}

    @torch.no_grad()
    def _measure(self, optimizer: torch.optim.Optimizer) -> None:
        names = self.trees.names()
        for i, group in enumerate(optimizer.param_groups):
            decoupled = decouples(optimizer, group)
            for j, parameter in enumerate(group["params"]):
                if parameter.is_floating_point() and parameter.numel():
                    name = names.get(id(parameter), f"group {i}, parameter {j}")
                    state = optimizer.state.get(parameter, {})
                    self._found[name] = moments(
                        parameter, parameter.grad, group, state, decoupled=decoupled
                    )

    def close_step(self, step: int, record: RecordWriter, *, due: bool) -> None:
        found, self._found = self._found, {}
        if not found:
            return
        device = next(iter(found.values())).device
        table = torch.stack([one.to(device) for one in found.values()]).cpu().numpy()
        columns = {name: table[:, k] for k, name in enumerate(MEASURED)}
        if np.isfinite(columns["m_rms"]).any():
            for key in MEASURED[:5]:
                record.layers(f"adam.{key}", step, list(found), columns[key])
        if np.isfinite(columns["lost"]).any():
            record.layers("adam.lost", step, list(found), columns["lost"])
        decayed = (columns["pull"] > 0) & np.isfinite(columns["push"])
        pull, push = (float(np.linalg.norm(columns[key][decayed])) for key in ("pull", "push"))
        if pull > 0 and push > 0:
            record.scalar("decay.ratio", step, pull / push)
