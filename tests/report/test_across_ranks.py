"""All ranks in one picture: what each measured, and whose weights are not those of rank 0."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
from starlette.testclient import TestClient

from traindoctor.dashboard.server import make_app
from traindoctor.record import Record, RecordWriter, Series, open_record
from traindoctor.report.across_ranks import PREFIX, rank_maps, rank_names, row_names
from traindoctor.report.html import embedded

WEIGHTS, LOSS = PREFIX + "weights.crc", PREFIX + "loss.root"


def ranks(count: int, steps: int = 40, *, odd: int = 2, sharded: int = 0) -> Record:
    """Losses are ten times the rank plus the step; one rank's weights go their own way from step 20."""
    at = np.arange(steps)
    found = [
        Record(
            series={
                "loss.root": Series("loss.root", at, 10.0 * rank + at),
                "weights.crc": Series(
                    "weights.crc", at[::10], at[::10] + 7.0 * ((rank == odd) & (at[::10] >= 20))
                ),
            },
            facts={"ranks": {"rank": rank, "world": count, "sharded": sharded}},
        )
        for rank in range(count)
    ]
    found[0].ranks = found
    return found[0]


def test_a_row_for_each_rank() -> None:
    record = ranks(4)
    maps = rank_maps(record, rank_names(record), columns=4)
    assert set(maps) == {WEIGHTS, LOSS}
    assert maps[LOSS].layers == ("rank 0", "rank 1", "rank 2", "rank 3")
    assert maps[LOSS].steps.tolist() == [0, 10, 20, 30]
    assert maps[LOSS].values[:, 3].tolist() == [39, 49, 59, 69]
    assert maps[WEIGHTS].values.T.tolist() == [[0] * 4, [0] * 4, [0, 0, 1, 1], [0] * 4]


def test_a_window_and_the_smallest() -> None:
    record = ranks(2)
    heat = rank_maps(record, [LOSS], columns=5, keep="min", start=10, stop=19)[LOSS]
    assert heat.steps.tolist() == [10, 12, 14, 16, 18]
    assert heat.values[:, 1].tolist() == [20, 22, 24, 26, 28]


def test_one_of_a_thousand_ranks_is_seen() -> None:
    record = ranks(1000, odd=777)
    heat = rank_maps(record, [WEIGHTS], columns=4)[WEIGHTS]
    assert heat.layers == row_names(record)
    assert len(heat.layers) == 125
    [row] = {int(row) for row in np.argwhere(heat.values.T > 0)[:, 0]}
    assert heat.layers[row] == "ranks 776 to 783"


def test_what_is_not_finite_and_what_was_not_measured() -> None:
    record = ranks(3)
    record.ranks[1]._series["loss.root"].values[12] = math.nan
    del record.ranks[2]._series["loss.root"]
    heat = rank_maps(record, [LOSS], columns=4)[LOSS]
    assert heat.bad.T.tolist() == [[False] * 4, [False, True, False, False], [False] * 4]
    assert np.isnan(heat.values[:, 2]).all()


def test_one_rank_has_no_such_picture_and_shards_have_other_weights() -> None:
    assert rank_names(ranks(1)) == []
    assert rank_names(ranks(2, sharded=3)) == [LOSS]


def test_a_report_and_the_live_page_have_it(tmp_path: Path) -> None:
    for rank, one in enumerate(ranks(3).ranks):
        writer = RecordWriter(tmp_path / "run", rank=rank)
        writer.fact("ranks", one.facts["ranks"])
        for name in one.names:
            for step, value in one[name]:
                writer.scalar(name, step, value)
        writer.close()
    held = embedded(open_record(tmp_path / "run"), None, name="run")
    assert held["run"]["layers"][WEIGHTS] == {"layers": 3, "measured": True}
    client = TestClient(make_app(tmp_path), base_url="http://127.0.0.1:8765")
    for _ in range(2):
        asked = client.get("/api/layers", params={"run": "run", "name": WEIGHTS, "columns": 200})
        assert asked.json() == held["layers"][WEIGHTS]
    narrow = {"run": "run", "name": LOSS, "from": 5, "to": 8}
    assert client.get("/api/layers", params=narrow).json()["steps"] == [5, 6, 7, 8]
