"""Fewer points, nothing that matters lost."""

from __future__ import annotations

import numpy as np
from hypothesis import example, given, settings
from hypothesis import strategies as st

from made_runs import make_huge_run, make_run
from traindoctor.record import LayerSeries, Series, make_record, open_record
from traindoctor.report.downsample import (
    RATIO,
    heat_map,
    layer_rows,
    mean,
    min_max,
    reduce_rows,
    round_digits,
    window,
)

numbers = st.floats(allow_nan=True, allow_infinity=True, width=64)


def series(values: list[float]) -> Series:
    return Series("x", np.arange(len(values), dtype=np.int64), np.array(values, dtype=np.float64))


@given(st.lists(numbers, min_size=1, max_size=400), st.integers(2, 60))
@settings(max_examples=200, deadline=None)
def test_extremes_ends_and_non_finite_values_survive(values: list[float], points: int) -> None:
    whole = series(values)
    few = min_max(whole, points)
    assert list(few.steps) == sorted(set(few.steps.tolist()))
    assert few.steps[0] == 0
    assert few.steps[-1] == len(values) - 1
    for step, value in few:
        np.testing.assert_equal(value, values[step])
    finite = whole.finite().values
    if len(finite):
        kept = few.finite().values
        assert kept.min() == finite.min()
        assert kept.max() == finite.max()
    if len(finite) < len(values):
        assert not np.isfinite(few.values).all()
    assert len(few) <= 3 * max(1, points // 2) + 2 or len(few) == len(values)


def test_each_bucket_keeps_its_own_nan() -> None:
    values = np.sin(np.arange(10_000) / 50)
    values[[1234, 7777]] = np.nan
    few = min_max(series(values.tolist()), 100)
    assert set(few.steps[~np.isfinite(few.values)].tolist()) == {1234, 7777}


def test_window_keeps_one_point_on_each_side() -> None:
    part = window(series([0.0] * 100), 10, 20)
    assert (part.steps[0], part.steps[-1]) == (9, 21)


def test_shares_are_averaged() -> None:
    share = mean(series([1.0, 0.0] * 500), 10)
    assert len(share) == 10
    np.testing.assert_allclose(share.values, 0.5)


@given(st.lists(numbers, min_size=1, max_size=50))
@example([5.366019188386547e-300])  # its scale would be beyond the range
def test_rounding_keeps_six_digits(values: list[float]) -> None:
    given_ = np.array(values)
    rounded = round_digits(given_)
    finite = np.isfinite(given_)
    np.testing.assert_array_equal(rounded[~finite], given_[~finite])
    np.testing.assert_allclose(rounded[finite], given_[finite], rtol=1e-5)


def test_heat_map_cell_is_the_largest_under_it_and_marks_infinity() -> None:
    values = np.random.default_rng(0).random((100, 3)).astype(np.float32)
    values[10, 1], values[55, 2] = 9.0, np.inf
    values[:, 0] = np.nan
    heat = reduce_rows(LayerSeries("g", ("a", "b", "c"), np.arange(100), values), 10, "max")
    assert heat.values.shape == (10, 3)
    assert heat.values[1, 1] == 9.0
    assert heat.bad[5, 2]
    assert heat.bad.sum() == 1
    assert np.isnan(heat.values[:, 0]).all()


def test_ratio_by_layer_is_made_where_steps_agree(tmp_path) -> None:
    record = open_record(make_run(tmp_path / "run", steps=40))
    update, weight = record.layers("update.rms"), record.layers("weight.rms")
    ratio = layer_rows(record, RATIO)
    np.testing.assert_allclose(ratio.values, update.values / weight.values, rtol=1e-6)


def test_ratio_without_weights_at_a_step_is_unknown() -> None:
    record = make_record(layers={"update.rms": {"a": [1.0, 2.0]}, "weight.rms": {"a": [4.0]}})
    ratio = layer_rows(record, RATIO)
    assert ratio.values[0, 0] == 0.25
    assert np.isnan(ratio.values[1, 0])


def test_heat_map_of_a_stored_record_reads_in_pieces(tmp_path) -> None:
    record = open_record(make_huge_run(tmp_path / "run", steps=9_000, tensors=5))
    heat = heat_map(record, "grad.rms", columns=50)
    whole = record.layers("grad.rms")
    assert heat is not None
    assert len(heat.steps) <= 50
    np.testing.assert_allclose(heat.values.max(axis=0), whole.values.max(axis=0))
