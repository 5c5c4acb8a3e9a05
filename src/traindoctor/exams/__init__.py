"""The table of exams. An exam is imported when it is wanted: none costs anything before."""

from __future__ import annotations

import importlib
from typing import Any

# exam -> module of traindoctor.exams; the module's `exam` attribute of the same name is the Exam
EXAMS: dict[str, str] = {}


def load(name: str) -> Any:
    """The Exam of that name."""
    module = importlib.import_module(f"traindoctor.exams.{EXAMS[name]}")
    return getattr(module, name)
