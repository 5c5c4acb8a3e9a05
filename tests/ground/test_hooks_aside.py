"""Hooks that a script registers for everything hear nothing of an exam, and everything afterwards."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.nn.modules.module import (
    register_module_forward_hook,
    register_module_forward_pre_hook,
    register_module_full_backward_hook,
    register_module_module_registration_hook,
    register_module_parameter_registration_hook,
)
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from traindoctor.exams.base import NotPossible
from traindoctor.exams.batched_forward import batched_forward
from traindoctor.experiment.patient import Patient
from traindoctor.experiment.reference import Reference, teach

REGISTER = (
    register_module_forward_hook,
    register_module_forward_pre_hook,
    register_module_full_backward_hook,
    register_module_module_registration_hook,
    register_module_parameter_registration_hook,
    register_optimizer_step_pre_hook,
    register_optimizer_step_post_hook,
)


def learn() -> None:
    x = torch.zeros(2, 4, dtype=torch.long)
    teach(Reference(5, 5, causal=True, length=4), [(x, x)], lambda z, y: z.square().mean())


@pytest.mark.filterwarnings("ignore:Full backward hook")
@pytest.mark.parametrize("register", REGISTER)
def test_a_global_hook_is_not_called_by_an_exam(register) -> None:
    heard: list[int] = []

    def hook(*_) -> None:
        heard.append(1)

    handle = register(hook)
    try:
        with Patient().undisturbed():
            learn()
        assert heard == []
        learn()
        assert heard
    finally:
        handle.remove()
    heard.clear()
    learn()
    assert heard == []


def test_the_scripts_packing_of_activations_is_not_called_by_an_exam() -> None:
    packed: list[int] = []

    def pack(tensor):
        packed.append(1)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        with Patient().undisturbed():
            learn()
        assert packed == []
        learn()
        assert packed


def test_a_model_with_hooks_is_not_called_again_for_a_timing() -> None:
    model, heard = nn.Linear(3, 3), []
    model.register_forward_hook(lambda *_: heard.append(1))
    calls = [((torch.randn(1, 3),), {}), ((torch.randn(1, 3),), {})]
    patient = SimpleNamespace(facts={"examples": (model, calls)})
    with pytest.raises(NotPossible, match="hooks"):
        batched_forward.perform(patient)  # type: ignore[arg-type]
    assert heard == []
