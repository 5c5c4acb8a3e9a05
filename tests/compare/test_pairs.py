"""Right implementations are equal, with room below the margin; a planted fault is named where it is, and what it is."""

import math
from pathlib import Path

import pytest

from compare.pairs.table import EQUAL, FAULTS, PAIRS, Pair
from traindoctor.compare.answer import Answer
from traindoctor.comparison import STEPS, Options, compare_sides
from traindoctor.tracing.patient import PatientSide

FOLDER = Path(__file__).parent / "pairs"
# Of the tolerance. Beyond it the margin would hang on the draw.
MOST_OVER = 0.5


def side(text: str) -> PatientSide:
    file, _, function = text.partition(":")
    return PatientSide(FOLDER / f"{file}.py", function)


def compared(pair: Pair) -> Answer:
    steps = STEPS if pair.first is None else 1 + pair.first[1]
    return compare_sides(side(pair.a), side(pair.b), Options(steps=steps))


def rows(pairs: tuple[Pair, ...]) -> list[object]:
    """As parameters; what takes long is slow."""
    return [
        pytest.param(pair, id=pair.name, marks=[] if pair.fast else [pytest.mark.slow])
        for pair in pairs
        if pair.device != "cuda"
    ]


@pytest.mark.parametrize("pair", rows(EQUAL))
def test_equal(pair: Pair) -> None:
    found = compared(pair)
    assert found.verdict == "equal", found.headline
    worst = max((place for place in found.places), key=lambda place: place.over or 0.0)
    assert (worst.over or 0.0) <= MOST_OVER, worst.entry.key


@pytest.mark.parametrize("pair", rows(FAULTS))
def test_fault(pair: Pair) -> None:
    found = compared(pair)
    assert found.first is not None, found.headline
    assert found.first.entry.key == pair.first
    assert found.first.over is None or not math.isnan(found.first.over)
    if pair.kind:
        assert found.kind is not None
        assert found.kind.code == pair.kind, found.kind.sentence


def test_names_are_unique_and_sides_exist() -> None:
    assert len({pair.name for pair in PAIRS}) == len(PAIRS)
    for pair in PAIRS:
        for text in (pair.a, pair.b):
            file, _, function = text.partition(":")
            assert f"\ndef {function}() -> Patient:" in (FOLDER / f"{file}.py").read_text()
