"""Which parameters are meant to learn, which get nothing, and which of them are zero besides."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor

if TYPE_CHECKING:
    from traindoctor.experiment.patient import Patient
    from traindoctor.tape.tape import StepTape


def trained(patient: Patient) -> set[str]:
    """Names that an optimizer holds; a network that none holds is not meant to learn (a teacher, a target)."""
    return set(patient.in_optimizers() or patient.learning)


def no_gradient(gradient: Tensor | None) -> bool:
    if gradient is not None and gradient.is_sparse:
        gradient = gradient.coalesce().values()
    return gradient is None or not bool(gradient.any())


def at_rest(tape: StepTape) -> list[str]:
    """Weights of exactly zero that got a gradient, of exactly zero. Hooks may change what arrives: not judged."""
    return [
        name
        for name, leaf in tape.parameters.items()
        if not leaf.hooked
        and tape.fresh.get(name) is not None
        and no_gradient(tape.fresh[name])
        and not bool(leaf.value.any())
    ]
