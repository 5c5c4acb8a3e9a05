"""Adam's moments, what eps does to them, and how hard weight decay pulls beside the gradient."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from traindoctor.events import Event, ForwardBegin, StepBegin, StepEnd
from traindoctor.probes.base import Cost
from traindoctor.record import RecordWriter
from traindoctor.replay.trees import ModuleTrees

# Statistics need no more entries than this of one tensor: a stride over it is read.
ENTRIES = 16_384


@dataclass
class Moments:
    """One parameter's share in the sampled step; sums of squares are over the entries read."""

    m_rms: float = math.nan
    v_rms: float = math.nan
    """Root mean square of sqrt(v): in the unit of a gradient."""
    snr: float = math.nan
    """Size of the mean gradient over the root of its mean square, both bias-corrected."""
    step_rms: float = math.nan
    """Update over learning rate: about 1 at the first step, less where gradients disagree."""
    under_eps: float = math.nan
    """Share of the entries with a gradient whose sqrt(v) is under eps."""
    pull: float = 0.0
    """Norm of the decay term as it enters the rule."""
    push: float = 0.0
    """Norm of the term that it stands beside: gradient, or Adam's normalised step."""


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
) -> Moments:
    """After the step: the state has seen `gradient`."""
    found = Moments()
    weight = _read(parameter)
    decay = float(group.get("weight_decay") or 0.0)
    found.pull = decay * float(weight.norm())
    if gradient is not None:
        found.push = float(_read(gradient).norm())
    m, v = state.get("exp_avg"), state.get("exp_avg_sq")
    betas = group.get("betas")
    if not isinstance(m, Tensor) or not isinstance(v, Tensor) or betas is None:
        return found
    if m.shape != parameter.shape or v.shape != parameter.shape:
        return found  # factored moments (Adafactor): another rule
    count = float(state.get("step", 1))
    first, second = (1 - float(beta) ** max(count, 1.0) for beta in betas[:2])
    m, root = _read(m) / max(first, 1e-12), (_read(v) / max(second, 1e-12)).sqrt()
    eps = float(group.get("eps", 0.0))
    step = m / (root + eps).clamp(min=1e-45)
    seen = root > 0
    found.m_rms, found.v_rms = _rms(m), _rms(root)
    found.step_rms = _rms(step)
    if seen.any():
        found.snr = _rms(m[seen] / root[seen])
        found.under_eps = float((root[seen] < eps).double().mean())
    if decoupled:
        found.push = float(step.norm())
    return found


def _read(tensor: Tensor) -> Tensor:
    local = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    flat = local.detach().flatten()
    return flat[:: max(1, flat.numel() // ENTRIES)].double()


def _rms(values: Tensor) -> float:
    return float(values.square().mean().sqrt()) if values.numel() else math.nan


class OptimizerState:
    """By parameter the moments, over all parameters the decay ratio and the share under eps."""

    name: ClassVar[str] = "optimizer_state"
    gives: ClassVar[tuple[str, ...]] = (
        "adam.m_rms",
        "adam.v_rms",
        "adam.snr",
        "adam.step_rms",
        "adam.under_eps",
        "decay.ratio",
    )
    cost: ClassVar[Cost] = "costly"
    every: ClassVar[int] = 25
    hears: ClassVar[tuple[type, ...]] = (
        ForwardBegin,
        StepBegin,
        StepEnd,
    )

    def __init__(self) -> None:
        self.trees = ModuleTrees()
        self._gradients: dict[int, Tensor] = {}
        self._found: dict[str, Moments] = {}

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
                if not parameter.is_floating_point():
                    continue
                name = names.get(id(parameter), f"group {i}, parameter {j}")
                state = optimizer.state.get(parameter, {})
                self._found[name] = moments(
                    parameter, parameter.grad, group, state, decoupled=decoupled
                )

    def close_step(self, step: int, record: RecordWriter, *, due: bool) -> None:
        found, self._found = self._found, {}
        if not found:
            return
        columns = list(found)
        if any(math.isfinite(one.m_rms) for one in found.values()):
            for key in ("m_rms", "v_rms", "snr", "step_rms", "under_eps"):
                row = [getattr(one, key) for one in found.values()]
                record.layers(f"adam.{key}", step, columns, row)
        pull = math.hypot(*(one.pull for one in found.values()))
        push = math.hypot(*(one.push for one in found.values() if one.pull))
        if pull > 0 and push > 0:
            record.scalar("decay.ratio", step, pull / push)
