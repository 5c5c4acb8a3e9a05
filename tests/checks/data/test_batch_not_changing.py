from __future__ import annotations

import pytest

from traindoctor.checks.base import Clear, Finding
from traindoctor.checks.data.batch_not_changing import batch_not_changing
from traindoctor.record import make_record


def test_fires_when_rows_never_change() -> None:
    found = batch_not_changing(make_record({"batch.rowset": [7.0] * 20}))
    assert isinstance(found, Finding)
    assert (found.status, found.since_step) == ("confirmed", 0)


def test_silent_when_every_batch_is_new_or_a_small_pool_comes_back() -> None:
    assert isinstance(batch_not_changing(make_record({"batch.rowset": list(range(20))})), Clear)
    pool = [float(i % 4) for i in range(40)]
    assert isinstance(batch_not_changing(make_record({"batch.rowset": pool})), Clear)


def test_silent_when_the_data_set_is_one_batch() -> None:
    record = make_record({"batch.rowset": [7.0] * 20}, facts={"loader.batches": 1})
    assert isinstance(batch_not_changing(record), Clear)


@pytest.mark.parametrize(
    ("times", "loader", "status"),
    [(None, None, "possible"), (40.0, None, "confirmed"), (None, 30, "confirmed")],
)
def test_the_same_tensors_may_be_all_there_is(
    times: float | None, loader: int | None, status: str
) -> None:
    """Full-batch training holds its data; a batch taken once is a small part of what the script holds."""
    facts = {"batch.held": {"since": 0, "times": times}, "loader.batches": loader}
    found = batch_not_changing(make_record({"batch.rowset": [7.0] * 20}, facts=facts))
    assert isinstance(found, Finding)
    assert found.status == status


def test_a_handful_of_batches_where_the_loader_has_more() -> None:
    pool = [float(i % 3) for i in range(40)]
    record = make_record({"batch.rowset": pool}, facts={"loader.batches": 100})
    assert isinstance(batch_not_changing(record), Finding)


def test_batches_drawn_again_and_again_from_a_generator_that_is_set_back() -> None:
    rounds = [float(i % 4) for i in range(40)]
    set_back = {"batch.rowset": rounds, "random.crc": [100.0 + i for i in rounds]}
    found = batch_not_changing(make_record(set_back))
    assert isinstance(found, Finding)
    assert "reset inside the loop" in found.summary
    nothing_drawn = {"batch.rowset": rounds, "random.crc": [5.0] * 40}
    assert isinstance(batch_not_changing(make_record(nothing_drawn)), Clear)
    one_state = {"batch.rowset": rounds, "random.crc": [5.0, *[6.0] * 39]}  # an evaluation seeds
    assert isinstance(batch_not_changing(make_record(one_state)), Clear)
    dropout_draws = {"batch.rowset": rounds, "random.crc": [float(i) for i in range(40)]}
    assert isinstance(batch_not_changing(make_record(dropout_draws)), Clear)


def test_more_batches_than_a_handful_from_states_that_come_back_are_only_possible() -> None:
    """An evaluation after every tenth step seeds; or the whole of a small data set in the same order each epoch."""
    rounds = [float(i % 10) for i in range(70)]
    found = batch_not_changing(
        make_record({"batch.rowset": rounds, "random.crc": [100.0 + i for i in rounds]})
    )
    assert isinstance(found, Finding)
    assert found.status == "possible"
    too_short = {"batch.rowset": rounds[:40], "random.crc": [100.0 + i for i in rounds[:40]]}
    assert isinstance(batch_not_changing(make_record(too_short)), Clear)


def test_fires_on_a_loader_whose_workers_give_the_same() -> None:
    """Two workers: every batch comes twice. Where a step was not heard, nothing is compared."""
    rows = [float(i // 2) for i in range(40)]
    twice = make_record({"batch.rowset": rows, "loader.again": [0.0, 1.0] * 20})
    found = batch_not_changing(twice)
    assert isinstance(found, Finding)
    assert found.status == "confirmed"
    assert "workers" in found.summary
    once = make_record({"batch.rowset": rows, "loader.again": [0.0] * 20})
    assert isinstance(batch_not_changing(once), Clear)
    few = make_record({"batch.rowset": rows, "loader.again": [1.0] * 4})
    assert isinstance(batch_not_changing(few), Clear)


@pytest.mark.parametrize(
    ("steps", "again", "shape", "status"),
    [
        (3, 2, [16, 4], "confirmed"),
        (2, 1, [16, 4], "likely"),  # of few heard steps
        (5, 1, [16, 4], None),  # seeded once more
        (3, 2, [4, 4], None),  # a table, not one number for each example
        (3, 0, [16, 4], None),
    ],
)
def test_random_numbers_that_come_again(
    steps: int, again: int, shape: list[int], status: str | None
) -> None:
    draw = {"line": "train.py:9", "shape": shape, "step": 2}
    facts = {"draws": {"steps": steps, "again": again, "draw": draw}}
    series = {"batch.rowset": list(range(20)), "batch.rows": [16.0] * 20}
    outcome = batch_not_changing(make_record(series, facts=facts))
    assert (outcome.status if isinstance(outcome, Finding) else None) == status
