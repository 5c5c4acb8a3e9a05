"""Exact shifts are found, everything else is silence."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from traindoctor.graph.alignment import align, dealt, looks_like_positions, ragged


def text(rows: int, length: int, *, kinds: int = 40, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, kinds, (rows, length))


def everywhere(targets: np.ndarray) -> np.ndarray:
    return np.ones(targets.shape, dtype=bool)


@given(shift=st.integers(-3, 3), rows=st.integers(3, 9), length=st.integers(14, 40))
@settings(max_examples=60, deadline=None)
def test_a_constant_shift_is_found_on_either_axis(shift: int, rows: int, length: int) -> None:
    long = text(rows, length + 8, seed=length)
    x, y = long[:, 4 : 4 + length], long[:, 4 + shift : 4 + shift + length]
    found = align(x, y, everywhere(y))
    assert found is not None
    assert (found.axis, found.shift, found.match) == (1, shift, 1.0)
    across = align(x.T.copy(), y.T.copy(), everywhere(y.T))
    assert across is not None
    assert across.shift == shift
    assert across.axis == 0 or shift == 0  # no shift, no axis


def test_logits_cut_by_one_place_and_flat_targets() -> None:
    x = text(5, 20)
    y = x[:, 1:].reshape(-1)
    found = align(x, y, everywhere(y))
    assert found is not None
    assert found.shift == 1


def test_pads_do_not_match_at_every_shift() -> None:
    x = text(6, 40)
    x[:, 12:] = 0
    y = np.concatenate([x[:, 1:], np.zeros((6, 1), dtype=int)], axis=1)
    found = align(x, y, everywhere(y))
    assert found is not None
    assert (found.shift, found.runner_up < 0.3) == (1, True)


def test_masked_language_model_is_silence() -> None:
    x = text(8, 30)
    chosen = np.random.default_rng(1).random(x.shape) < 0.15
    y, inputs = np.where(chosen, x, -100), np.where(chosen, 39, x)
    assert align(inputs, y, chosen) is None


def test_reversal_is_a_map_of_places_not_a_shift() -> None:
    x = text(16, 10)
    found = align(x, x[:, ::-1].copy(), everywhere(x))
    assert found is not None
    assert (found.shift, found.places) == (None, "reversed")
    wired = align(x, x[:, [3, 1, 0, 2, 5, 4, 9, 8, 7, 6]], everywhere(x))
    assert wired is not None
    assert wired.places == "permuted"


def test_constant_text_cannot_be_told() -> None:
    x = np.zeros((4, 30), dtype=int)
    assert align(x, x, everywhere(x)) is None


@pytest.mark.parametrize(
    ("index", "expected"),
    [
        (np.arange(16), True),
        (np.arange(16)[None].repeat(4, 0), True),
        (np.zeros((4, 16), dtype=int), True),  # token types
        (np.array([[1, 1, 2, 3, 4], [2, 3, 4, 5, 6]]), True),  # counted from behind left pads
        (np.abs(np.arange(9)[:, None] - np.arange(9)), True),  # relative buckets
        (text(4, 16), False),
        (text(4, 16, kinds=2), False),
        (np.cumsum(text(4, 16, kinds=2), axis=1), False),
    ],
)
def test_places_are_told_from_tokens(index: np.ndarray, expected: bool) -> None:
    assert looks_like_positions(index) is expected


@given(rows=st.integers(4, 12), length=st.integers(12, 40), seed=st.integers(0, 50))
@settings(max_examples=40, deadline=None)
def test_targets_of_other_rows_are_found(rows: int, length: int, seed: int) -> None:
    long = text(rows, length + 1, seed=seed)
    x, y = long[:, :-1], long[:, 1:]
    rolled = np.roll(y, 1, axis=0)
    found = dealt(x, rolled, everywhere(y))
    assert found is not None
    assert (found.shift, found.moved, found.compared) == (1, 1.0, x.size - rows)
    assert dealt(x, y, everywhere(y)) is None
    assert dealt(x, text(rows, length, seed=seed + 1), everywhere(y)) is None


def test_equal_rows_tell_nothing_of_their_order() -> None:
    long = np.repeat(text(1, 21), 6, axis=0)
    assert dealt(long[:, :-1], long[:, 1:], everywhere(long[:, 1:])) is None


def test_a_roll_wraps_around_and_a_cut_does_not() -> None:
    ids = np.random.default_rng(0).integers(0, 50, (8, 20))
    valid = np.ones((8, 20), dtype=bool)
    rolled = align(ids, np.roll(ids, -1, axis=1), valid)
    assert rolled is not None
    assert (rolled.shift, rolled.wrapped) == (1, True)
    longer = np.concatenate([ids, ids[:, :1] + 1], axis=1)
    cut = align(longer[:, :-1], longer[:, 1:], valid)
    assert cut is not None
    assert (cut.shift, cut.wrapped) == (1, False)


@pytest.mark.parametrize("order", [True, False])
def test_rows_cut_at_different_lengths(order: bool) -> None:
    """One stream cut into rows of 100, its targets into rows of 99: row b is shifted by 1 - b, up to half its length."""
    rng = np.random.default_rng(0)
    stream = rng.integers(0, 30, 1300)
    if order:  # each token allows three others
        for at in range(1, len(stream)):
            stream[at] = (7 * stream[at - 1] + rng.integers(0, 3)) % 30
    x = stream[:1200].reshape(12, 100)[:, :40]
    y = stream[1:1189].reshape(12, 99)[:, :40]
    found = ragged(x, y, everywhere(y))
    assert found is not None
    assert found.shifts == tuple(1 - row for row in range(12))
    assert found.text is order
