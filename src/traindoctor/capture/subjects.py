"""Whom the run trains: its modules and optimizers, as they are met."""

from __future__ import annotations

import weakref

import torch

from traindoctor.capture.hub import hub
from traindoctor.events import BackwardBegin
from traindoctor.experiment.patient import Patient
from traindoctor.ground.graph_walk import leaves_behind
from traindoctor.ground.memory import memory, nbytes
from traindoctor.ground.names import unwrap

# Optimizers that exams may look at, the latest.
OPTIMIZERS_KEPT = 4
# A weight, its gradient, two moments.
COPIES = 4


class Subjects:
    """Fills `patient.model`, `patient.optimizers` and the names of parameters.

    Small ones are held for the tests after the script's end, where a function that trained has returned; large ones never.
    """

    def __init__(self, patient: Patient) -> None:
        self.patient = patient
        self._roots: weakref.WeakValueDictionary[int, torch.nn.Module] = (
            weakref.WeakValueDictionary()
        )
        self._optimizers: weakref.WeakValueDictionary[int, torch.optim.Optimizer] = (
            weakref.WeakValueDictionary()
        )
        self._served = self._leaves_known = False

    def meet_module(self, module: torch.nn.Module) -> None:
        """The model is the largest module that was called from outside."""
        if self._roots.get(id(module)) is module:
            return
        self._roots[id(module)] = module
        if num_parameters(module):
            self.patient.names.add_module(module)
            self.patient.model = None  # what the script has let go of is gone with that
            largest = unwrap(max(self._roots.values(), key=num_parameters))
            self.patient.model = largest if may_be_held(largest) else weakref.ref(largest)

    def meet_optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        if self._optimizers.get(id(optimizer)) is None:
            self._optimizers[id(optimizer)] = optimizer
            self.patient.names.add_tensors(
                p for group in optimizer.param_groups for p in group["params"]
            )
            # A script may make a new one at each step: holding them all would hold their states.
            self.patient.optimizers = ()
            latest = list(self._optimizers.values())[-OPTIMIZERS_KEPT:]
            held = all(map(may_be_held, latest))
            self.patient.optimizers = latest if held else weakref.WeakSet(latest)

    def meet_leaves(self, event: BackwardBegin) -> None:
        """What a script without modules trains, and moves itself: an optimizer would tell, and so would a module."""
        if self._leaves_known or len(hub.optimizers):
            return
        self._leaves_known, names = True, self.patient.names
        if not any(True for _ in names.parameters()):
            names.add_tensors(event.inputs or leaves_behind(event.roots))

    def left_behind(self) -> bool:
        """Whether the gradients of this step, unlike those of the last one, went to no optimizer that we know."""
        served = any(map(has_gradients, self._optimizers.values()))
        self._served, left = served, self._served and not served
        return left

    def name_again(self) -> None:
        """Modules may have been replaced since."""
        for root in list(self._roots.values()):
            self.patient.names.add_module(root)


def may_be_held(owner: torch.nn.Module | torch.optim.Optimizer) -> bool:
    """What the script lets go of would stay: within the memory bound, with gradients and two moments of each weight."""
    if isinstance(owner, torch.nn.Module):
        parameters = list(owner.parameters())
    else:
        parameters = [p for group in owner.param_groups for p in group["params"]]
    return COPIES * sum(nbytes(parameter) for parameter in parameters) <= memory.bound


def num_parameters(module: torch.nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def has_gradients(optimizer: torch.optim.Optimizer) -> bool:
    return any(p.grad is not None for group in optimizer.param_groups for p in group["params"])
