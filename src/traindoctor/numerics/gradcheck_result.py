"""What gradcheck found, per input, and how it says it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Outcome = Literal["pass", "wrong", "undecided"]
WORDS = {
    "pass": "pass",
    "wrong": "WRONG",
    "undecided": "cannot be decided at this precision",
}


@dataclass(frozen=True)
class InputResult:
    """What was found for one input (or parameter)."""

    name: str
    outcome: Outcome
    difference: float
    """Largest disagreement, relative."""
    noise: float
    """What a right gradient may show."""
    pattern: str
    factor: float | None
    by: str
    """'finite differences' or 'reference'."""
    dtype: str

    def __str__(self) -> str:
        text = f"{self.name}: {WORDS[self.outcome]}"
        text += f" (off by {self.difference:.1e}, noise {self.noise:.1e}, {self.dtype}, {self.by})"
        return text + (f": {self.pattern}" if self.outcome == "wrong" else "")


@dataclass(frozen=True)
class GradcheckResult:
    """`ok` when every input passed."""

    inputs: tuple[InputResult, ...]

    @property
    def outcome(self) -> Outcome:
        outcomes = {one.outcome for one in self.inputs}
        if "wrong" in outcomes:
            return "wrong"
        return "undecided" if "undecided" in outcomes or not outcomes else "pass"

    @property
    def ok(self) -> bool:
        return self.outcome == "pass"

    def __str__(self) -> str:
        return "\n".join(map(str, self.inputs))
