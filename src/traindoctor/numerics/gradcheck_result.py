"""What gradcheck found, per input, and how it says it."""

import math
from dataclasses import asdict, dataclass
from typing import Any, Literal

from traindoctor.errors import GradcheckError

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
        if self.outcome == "wrong":
            text += f", {self.pattern}"
        error, allowed = _short(self.difference), _short(self.noise)
        return (
            f"{text} (relative error {error}, rounding allows {allowed}; {self.dtype}, {self.by})"
        )


def _short(value: float) -> str:
    """Two digits: 0.79, 1.5e-7."""
    mantissa, e, exponent = f"{value:.2g}".partition("e")
    return f"{mantissa}e{int(exponent)}" if e else mantissa


@dataclass(frozen=True)
class GradcheckResult:
    """True where every gradient passed, and only then: `assert gradcheck(f, x)` fails on one that is wrong and on
    one that cannot be decided."""

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

    def __bool__(self) -> bool:
        return self.ok

    def require(self) -> None:
        """Raises a GradcheckError that says which gradients did not pass, and how."""
        if not self:
            failed = [str(one) for one in self.inputs if one.outcome != "pass"]
            text = "; ".join(failed) or "there was no gradient to test"
            raise GradcheckError(text, result=self)

    def as_dict(self) -> dict[str, Any]:
        """Plain data; NaN and infinity become strings, because JSON has none."""
        inputs = [
            {
                name: v if not isinstance(v, float) or math.isfinite(v) else str(v)
                for name, v in asdict(one).items()
            }
            for one in self.inputs
        ]
        return {"outcome": self.outcome, "inputs": inputs}

    def __str__(self) -> str:
        return "\n".join(map(str, self.inputs))
