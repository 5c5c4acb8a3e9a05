"""traindoctor finds out why a transformer is not learning.

    import traindoctor
    with traindoctor.watch(model, optimizer) as doctor:
        train()
    print(doctor.diagnosis)

The public names are loaded when they are first used: importing the package does not import torch.
"""

from __future__ import annotations

import importlib
from typing import Any

__version__ = "0.2.0"

# public name -> module that defines it
_HOME = {
    "watch": "traindoctor.doctor",
    "check": "traindoctor.checkup",
    "gradcheck": "traindoctor.exams.gradcheck",
    "diagnose": "traindoctor.diagnosis",
    "explain": "traindoctor.diagnosis",
    "cross_entropy": "traindoctor.kernels.cross_entropy",
    "linear_cross_entropy": "traindoctor.kernels.linear_cross_entropy",
    "Session": "traindoctor.integrations.session",
    "Record": "traindoctor.record",
    "Finding": "traindoctor.checks.base",
    "Diagnosis": "traindoctor.diagnosis",
    "TraindoctorError": "traindoctor.errors",
}

__all__ = ["__version__", *_HOME]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'traindoctor' has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
