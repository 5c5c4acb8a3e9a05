"""How far a run has come: one number for the list, the page and the command."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from traindoctor.record import Record, RecordWriter, Series, make_record
from traindoctor.record.progress import last_loss, main_loss, num_steps
from traindoctor.record.runs import find_runs


def record_of(**series: dict[int, float]) -> Record:
    return Record(
        series={
            name: Series(name, np.array(list(points)), np.array(list(points.values())))
            for name, points in ((key.replace("_", "."), points) for key, points in series.items())
        }
    )


def test_the_same_loss_taken_further_is_given() -> None:
    """Per token it is measured now and then only: the list showed a number that was 64 steps old."""
    record = record_of(
        loss_token={0: 4.0, 1: 3.5, 128: 2.9}, loss_root={0: 4.0, 1: 3.5, 128: 2.9, 192: 2.5}
    )
    found = last_loss(record)
    assert found is not None
    assert (found.measure, found.step, found.value) == ("loss.root", 192, 2.5)


def test_what_backward_gets_in_another_unit_is_not_the_loss() -> None:
    record = record_of(
        loss_token={0: 4.6, 1: 4.5, 192: 4.6},
        loss_read={0: 4.5, 1: 4.6, 192: 4.4, 210: 4.55},
        loss_root={0: 0.14, 1: 0.15, 192: 0.14, 210: 0.14},
    )
    found = main_loss(record)
    assert found is not None
    assert found.name == "loss.read"
    assert found.last == 4.55


def test_the_step_from_which_on_it_is_no_number() -> None:
    nan, inf = math.nan, math.inf
    found = last_loss(make_record({"loss.root": [3.0, nan, 2.0, inf, nan, nan]}))
    assert found is not None
    assert math.isnan(found.value)
    assert found.bad_since == 3
    always = last_loss(make_record({"loss.root": [nan, nan]}))
    assert always is not None
    assert always.bad_since == 0


@pytest.mark.parametrize("values", [[], [3.0, 2.0]])
def test_a_loss_that_is_fine_or_missing(values: list[float]) -> None:
    found = last_loss(make_record({"loss.root": values}))
    assert found is None if not values else found is not None and found.bad_since is None


def test_steps_that_were_counted_and_not_looked_at() -> None:
    assert num_steps(make_record({"loss.root": [1.0] * 193}, facts={"run.steps": 200})) == 200
    assert num_steps(make_record({"loss.root": [1.0] * 5})) == 5
    assert num_steps(make_record()) == 0


def test_the_command_lists_the_same_loss(tmp_path: Path) -> None:
    writer = RecordWriter(tmp_path / "run")
    for step in range(10):
        writer.scalar("loss.root", step, 0.25 * (4.0 - 0.1 * step))
        writer.scalar("loss.token", step, 4.0 - 0.1 * step)
    writer.close()
    (run,) = find_runs(tmp_path)
    assert run.loss == pytest.approx(3.1)
