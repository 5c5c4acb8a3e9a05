"""What a comparison found: the first tensor that differs, what kind of difference it is, and how far the rest agrees."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from traindoctor.compare.kinds import explain
from traindoctor.compare.kinds.base import Kind, Scene
from traindoctor.compare.matching import describe
from traindoctor.compare.terms import Aligned
from traindoctor.compare.tolerance import Tolerance
from traindoctor.compare.walk import WORDS, Place, first_different, walk
from traindoctor.record.wording import some_of

FORMAT = 1
MOST_NAMED = 4
Verdict = Literal["equal", "different", "inconclusive"]
PARTS = {
    "input": "before the step",
    "weight": "before the step",
    "activation": "in the forward pass",
    "loss": "in the loss",
    "gradient": "in the backward pass",
    "update": "in the update",
}


@dataclass(frozen=True)
class Answer:
    """Of one comparison."""

    a: str
    b: str
    verdict: Verdict
    places: tuple[Place, ...]
    first: Place | None = None
    kind: Kind | None = None
    tolerance: Tolerance = field(default_factory=lambda: Tolerance({}, 0))
    layouts: tuple[str, ...] = ()
    """Weights that are paired under other names or layouts."""
    notes: tuple[str, ...] = ()
    reproduce: str = ""

    @property
    def headline(self) -> str:
        compared = [place for place in self.places if place.state != "missing"]
        steps = 1 + max((place.entry.step for place in compared), default=0)
        counted = f"{len(compared)} tensors of {steps} step{'s' * (steps > 1)}"
        if self.verdict == "inconclusive":
            return f"INCONCLUSIVE: {self.notes[0] if self.notes else 'nothing could be compared'}"
        if self.first is None:
            over = [place.over or 0.0 for place in compared]
            worst = max(over, default=0.0)
            if not any(place.apart and place.apart.whole for place in compared):
                return f"EQUAL to the last bit: {counted}"
            return f"EQUAL within rounding: {counted}, the largest difference is {worst:.2g} of the tolerance"
        return f"DIFFERENT: first {self.where}{self._far()}"

    @property
    def where(self) -> str:
        """The first tensor that differs, in words."""
        assert self.first is not None
        entry = self.first.entry
        what = f"the {WORDS[entry.kind]} of {named(entry.name)}"
        if entry.kind == "loss":
            what = "the loss"
        elif entry.kind == "activation" and entry.name.partition("#")[0].endswith(".input"):
            what = named(entry.name)
        return f"{what} at step {entry.step} ({PARTS[entry.kind]})"

    def _far(self) -> str:
        assert self.first is not None
        over = self.first.over
        if over is None or math.isinf(over):
            return ""
        return f", {short(over)} x what rounding explains"

    def as_dict(self) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "verdict": self.verdict,
            "headline": self.headline,
            "a": self.a,
            "b": self.b,
            "first": _row(self.first) if self.first is not None else None,
            "where": self.where if self.first is not None else None,
            "kind": {"code": self.kind.code, "sentence": self.kind.sentence} if self.kind else None,
            "tolerance": {
                "measured": self.tolerance.draws > 0,
                "draws": self.tolerance.draws,
                "dtype": self.tolerance.coarsest,
            },
            "layouts": list(self.layouts),
            "notes": list(self.notes),
            "tensors": [_row(place) for place in self.places],
            "reproduce": self.reproduce,
        }


def named(name: str) -> str:
    """A name of a trace as a reader says it."""
    base, call, number = name.partition("#")
    again = f" (call {number})" if call else ""
    if base.endswith(".input"):
        return f"what goes into {base[: -len('.input')]}{again}"
    return f"{base}{again}"


def short(value: float) -> str:
    """Two digits are enough."""
    if value >= 1e6 or (value and value < 1e-3):
        return f"{value:.1e}"
    return f"{value:,.0f}" if value >= 10 else f"{value:.2g}"


def _row(place: Place) -> dict[str, Any]:
    entry, apart, allowed = place.entry, place.apart, place.allowed
    return {
        "name": entry.name,
        "kind": entry.kind,
        "step": entry.step,
        "shape": list(entry.shape),
        "state": place.state,
        "shape_in_b": list(place.shape) if place.shape is not None else None,
        "difference": _finite(apart.whole) if apart else None,
        "largest": _finite(apart.worst) if apart else None,
        "tolerance": _finite(allowed.whole) if allowed else None,
        "over": _finite(place.over) if place.over is not None else None,
    }


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def answer(
    aligned: Aligned, tolerance: Tolerance, *, notes: Sequence[str] = (), reproduce: str = ""
) -> Answer:
    """Walks both sides and says what is found."""
    with np.errstate(all="ignore"):  # numbers near the ends of float64 are judged like others
        places = tuple(walk(aligned, tolerance))
    first = first_different(places)
    told = [*notes, *_unmatched(aligned)]
    verdict: Verdict = "different" if first is not None else "equal"
    seen = Counter(place.entry.kind for place in places if place.state == "same")
    if first is None and not (seen["gradient"] or seen["update"] or seen["activation"]):
        verdict = "inconclusive"
        told.insert(
            0,
            "no tensor of A has a partner in B: names and shapes do not correspond; give --map FILE",
        )
    kind = None
    if first is not None and first.state == "no gradient":
        kind = Kind(
            "zero", "no gradient arrives in B: what lies between it and the loss is detached"
        )
    elif first is not None and first.state == "different":
        with np.errstate(all="ignore"):
            kind = explain(Scene(first.entry, aligned.a, aligned.b, tolerance, first.open))
    return Answer(
        a=aligned.a.title,
        b=aligned.b.title,
        verdict=verdict,
        places=places,
        first=first,
        kind=kind,
        tolerance=tolerance,
        layouts=tuple(describe(aligned.matches)),
        notes=tuple(told),
        reproduce=reproduce,
    )


def _unmatched(aligned: Aligned) -> list[str]:
    found = []
    for names, side, other in ((aligned.only_a, "A", "B"), (aligned.only_b, "B", "A")):
        if names:
            shown = some_of(names, MOST_NAMED)
            found.append(f"{len(names)} weights of {side} have no partner in {other}: {shown}")
    return found
