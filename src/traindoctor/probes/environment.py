"""What runs here: versions, device, the model's tree, the optimizer's settings. Written once."""

from __future__ import annotations

import os
import platform
import sys
import weakref
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from traindoctor.events import Event, ForwardBegin, StepBegin
from traindoctor.ground.names import unwrap
from traindoctor.probes.base import Cost
from traindoctor.record import RecordWriter

if TYPE_CHECKING:
    from traindoctor.ground.names import Names

# Lines of the model tree; a deeper one is cut, with a word.
MOST_MODULES = 400


class Environment:
    """Facts `env`, `model.tree`, `model.parameters`."""

    name: ClassVar[str] = "environment"
    cost: ClassVar[Cost] = "free"
    every: ClassVar[int] = 1
    hears: ClassVar[tuple[type, ...]] = (ForwardBegin, StepBegin)

    names: Names

    def __init__(self) -> None:
        self._roots: dict[int, weakref.ref[torch.nn.Module]] = {}
        self._optimizers: dict[int, weakref.ref[torch.optim.Optimizer]] = {}
        self._news = True
        self._told_env = False

    def on(self, event: Event, *, due: bool) -> None:
        if isinstance(event, ForwardBegin):
            self._learn(self._roots, event.module)
        elif isinstance(event, StepBegin):
            self._learn(self._optimizers, event.optimizer)

    def _learn(self, known: dict[int, Any], thing: Any) -> None:
        if id(thing) not in known or known[id(thing)]() is not thing:
            known[id(thing)] = weakref.ref(thing)
            self._news = True

    def close_step(self, step: int, record: RecordWriter, *, due: bool) -> None:
        if not self._told_env:
            record.fact("env", environment())
            self._told_env = True
        if self._news:
            self._news = False
            roots = [root for ref in self._roots.values() if (root := ref()) is not None]
            roots = [root for root in roots if any(True for _ in root.parameters())]
            record.fact("model.tree", [line for root in roots for line in tree(root)])
            record.fact("model.parameters", parameters(self.names, roots))


def environment() -> dict[str, Any]:
    cuda = torch.cuda.is_initialized()
    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "platform": " ".join(os.uname()[i] for i in (0, 2, 4))
        if hasattr(os, "uname")
        else sys.platform,
        "device": torch.cuda.get_device_name() if cuda else "cpu",
        "threads": torch.get_num_threads(),
        "cpus": os.cpu_count(),
        "libraries": {
            name: str(getattr(sys.modules[name], "__version__", ""))
            for name in ("transformers", "lightning", "pytorch_lightning", "accelerate", "triton")
            if name in sys.modules
        },
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "tf32": torch.backends.cuda.matmul.allow_tf32,
    }


def tree(root: torch.nn.Module) -> list[str]:
    lines: list[str] = []
    for number, (name, module) in enumerate(unwrap(root).named_modules()):
        if number == MOST_MODULES:
            return [*lines, "... (cut)"]
        own = sum(p.numel() for p in module.parameters(recurse=False))
        lines.append(f"{name or '(root)'}: {type(module).__name__}" + (f" {own}" if own else ""))
    return lines


def parameters(names: Names, roots: list[torch.nn.Module]) -> list[dict[str, Any]]:
    """One row per parameter; `tied` has the other names of the same tensor."""
    aliases: dict[int, list[str]] = {}
    for root in roots:
        for name, parameter in unwrap(root).named_parameters(remove_duplicate=False):
            aliases.setdefault(id(parameter), []).append(name)
    return [
        {
            "name": name,
            "shape": list(p.shape),
            "dtype": str(p.dtype).removeprefix("torch."),
            "device": p.device.type,
            "trainable": p.requires_grad,
            "tied": aliases.get(id(p), [])[1:],
        }
        for name, p in names.parameters()
    ]
