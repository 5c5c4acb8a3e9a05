"""The table 'X explains Y' is whole, points at known causes and has no circle."""

from __future__ import annotations

import pytest

from traindoctor.diagnosis.rules import EXPLAINS, consequences

# Pairs that the field reports and the laboratory decided.
KNOWN = [
    ("missing-zero-grad", "clip-too-tight"),
    ("missing-zero-grad", "gradients-exploding"),
    ("lr-too-high", "gradients-exploding"),
    ("backward-incorrect", "loss-gradient-mismatch"),
    ("loss-scale-wrong", "lr-too-high"),
    ("unstable-softmax", "nan-from-op"),
    ("all-targets-ignored", "nan-from-op"),
    ("optimizer-holds-stale-params", "params-not-in-optimizer"),
    ("gradients-not-synced", "ranks-diverged"),
    ("lr-schedule-wrong", "lr-too-low"),
    ("low-precision-updates-lost", "lr-too-low"),
    ("clip-too-tight", "lr-too-low"),
    ("batch-not-changing", "overfitting"),
    ("attention-softmax-wrong-dim", "attention-blind"),
    ("residual-missing", "gradients-vanishing"),
    ("init-too-large", "attention-scale-wrong"),
]


@pytest.mark.parametrize(("root", "other"), KNOWN)
def test_known_pairs_run_one_way(root: str, other: str) -> None:
    assert other in consequences(root)
    assert root not in consequences(other)


def test_every_consequence_is_a_cause_of_the_table() -> None:
    assert {slug for row in EXPLAINS.values() for slug in row} <= set(EXPLAINS)


@pytest.mark.parametrize("cause", sorted(EXPLAINS))
def test_no_cause_explains_itself(cause: str) -> None:
    assert cause not in consequences(cause)


def test_explaining_is_transitive() -> None:
    for cause in EXPLAINS:
        for other in consequences(cause):
            assert consequences(other) <= consequences(cause)
