from __future__ import annotations

import numpy as np

from traindoctor.checks.base import Clear, Finding, NotJudged, Outcome
from traindoctor.checks.speed.memory_leak import memory_leak
from traindoctor.record import make_record


def test_graphs_that_pile_up_are_a_leak() -> None:
    old = [max(0, step - 8) // 2 for step in range(60)]
    finding = memory_leak(
        make_record({"graphs.old": old, "memory.rss": [1e9 + 5e6 * s for s in range(60)]})
    )
    assert isinstance(finding, Finding)
    assert (finding.status, finding.grade) == ("likely", "exact")
    assert finding.since_step == 10


def test_silent_when_graphs_die() -> None:
    assert isinstance(memory_leak(make_record({"graphs.old": [0.0] * 60})), Clear)


def test_silent_when_a_list_is_emptied_again() -> None:
    old = [float(step % 20) for step in range(60)]
    assert isinstance(memory_leak(make_record({"graphs.old": old})), Clear)


def test_silent_on_one_graph_that_is_kept() -> None:
    assert isinstance(memory_leak(make_record({"graphs.old": [0.0] * 9 + [1.0] * 51})), Clear)


def test_bytes_alone_are_at_most_possible() -> None:
    rss = [1e9 + 6e6 * step for step in range(100)]
    finding = memory_leak(make_record({"graphs.old": [0.0] * 100, "memory.rss": rss}))
    assert isinstance(finding, Finding)
    assert finding.status == "possible"


def test_bytes_that_level_off_are_none() -> None:
    rss = 1e9 * (1 + 0.5 * (1 - np.exp(-np.arange(100) / 20)))
    assert isinstance(
        memory_leak(make_record({"graphs.old": [0.0] * 100, "memory.rss": rss})), Clear
    )


def census(**values: object) -> Outcome | None:
    known = {"shapes": [], "graph_nodes": 60, "step_ops": 55, "steps": 100, **values}
    rss = [1e9 + 6e6 * step for step in range(100)]
    series = {"graphs.old": [0.0] * 100, "memory.rss": rss}
    return memory_leak(make_record(series, exams={"kept_tensors": known}))


def test_a_tensor_kept_at_every_step_is_a_leak() -> None:
    kept = {"shape": [64, 96, 96], "dtype": "float32", "number": 100, "bytes": 100 * 6_000_000}
    finding = census(shapes=[kept])
    assert isinstance(finding, Finding)
    assert (finding.status, finding.grade) == ("likely", "exact")
    assert "(64, 96, 96)" in finding.summary


def test_a_graph_through_many_steps_is_a_leak() -> None:
    finding = census(graph_nodes=1369)
    assert isinstance(finding, Finding)
    assert (finding.status, finding.grade) == ("likely", "exact")


def test_tensors_that_are_not_what_grows_stay_possible() -> None:
    few = {"shape": [64, 96, 96], "dtype": "float32", "number": 3, "bytes": 600_000_000}
    small = {"shape": [4], "dtype": "float32", "number": 100, "bytes": 1600}
    finding = census(shapes=[few, small])
    assert isinstance(finding, Finding)
    assert finding.status == "possible"


def falling_pace(**exams: object) -> Outcome | None:
    """The tapes and snapshots of the first steps are ours: the pace falls, and the script's own part stays."""
    steps = np.arange(100)
    rss = 4e8 + 3e6 * steps + 2e8 * (1 - np.exp(-steps / 25))
    series = {"graphs.old": [0.0] * 100, "memory.rss": rss.tolist()}
    return memory_leak(make_record(series, exams=exams))


def test_growth_that_slows_down_is_a_leak_only_by_what_is_alive() -> None:
    asked = falling_pace()
    assert isinstance(asked, NotJudged)
    assert asked.wants == "kept_tensors"
    known = {"shapes": [], "graph_nodes": 60, "step_ops": 55, "steps": 100}
    assert isinstance(falling_pace(kept_tensors=known), Clear)
    kept = {"shape": [64, 32, 256], "dtype": "float32", "number": 100, "bytes": 300_000_000}
    finding = falling_pace(kept_tensors={**known, "shapes": [kept]})
    assert isinstance(finding, Finding)
    assert (finding.status, finding.grade) == ("likely", "exact")
