"""The list of runs, and ranks beside each other."""

from __future__ import annotations

import resource
from pathlib import Path

import pytest

from traindoctor.errors import RecordError
from traindoctor.record import (
    RecordWriter,
    agreement,
    comparable,
    make_record,
    open_record,
    unlike_the_others,
)
from traindoctor.record.runs import earlier_run, find_runs


def test_runs_are_listed_newest_first(tmp_path: Path) -> None:
    for number in range(3):
        writer = RecordWriter(tmp_path / f"run-{number}", meta={"created": float(number)})
        writer.scalar("loss.root", 0, float(number))
        writer.fact("run.ended", 0)
        writer.fact("verdict", {"verdict": "sick", "causes": [{"cause": "lr-too-high"}]})
        writer.close()
    earlier = tmp_path / "run-0" / "earlier-1"
    RecordWriter(earlier).close()
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "record-0.sqlite").write_text("not a record")
    broken, *runs = find_runs(tmp_path)
    assert broken.path.name == "broken"
    assert "not a readable record" in str(broken.problem)
    assert [run.path.name for run in runs] == ["run-2", "run-1", "run-0"]
    assert runs[0].loss == 2.0
    assert runs[0].causes == ("lr-too-high",)


def test_a_missing_folder_is_told(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match="no folder"):
        find_runs(tmp_path / "nowhere")


def test_agreement_counts_common_steps_bit_for_bit() -> None:
    left = make_record({"grad.crc": [1.0, 2.0, 3.0, 4.0]})
    right = make_record({"grad.crc": [1.0, 2.5, 3.0]})
    found = agreement(make_record(ranks=[left, right]), "grad.crc")
    assert (found.steps, found.equal, found.first_difference) == (3, 2, 1)
    assert found.last_equal > found.first_difference


def test_ranks_that_stand_alone_are_named() -> None:
    equal = [make_record({"weights.crc": [1.0, 2.0]}) for _ in range(3)]
    odd = make_record({"weights.crc": [1.0, 5.0]})
    assert unlike_the_others(make_record(ranks=[*equal, odd]), "weights.crc", 1) == [3]
    assert unlike_the_others(make_record(ranks=[odd, equal[0]]), "weights.crc", 1) == []


def test_more_ranks_than_files_can_be_open(tmp_path: Path) -> None:
    """Each is opened when its turn comes; one of them may be asked for by number, as the page does."""
    for rank in range(40):
        writer = RecordWriter(tmp_path, rank=rank)
        for name in ("weights.crc", "weights.crc_before", "grad.crc"):
            for step in range(4):
                writer.scalar(name, step, step + (rank == 7 and step > 2))
        writer.close()
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    held = len(list(Path("/proc/self/fd").iterdir()))
    resource.setrlimit(resource.RLIMIT_NOFILE, (held + 20, before[1]))
    try:
        record = open_record(tmp_path)
        found = agreement(record, "weights.crc")
        assert [rank.meta["rank"] for rank in record.ranks] == list(range(40))
        third = record.ranks[3]
        assert third["weights.crc"].last == 3
        assert len(third.ranks) == 40
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    assert (found.steps, found.equal, found.first_difference) == (4, 3, 3)
    assert unlike_the_others(record, "weights.crc", 3) == [7]


def test_one_rank_has_nothing_to_compare() -> None:
    watched = make_record(facts={"env": {"device": "cpu"}})
    assert comparable(watched) == ("clear", "the run has one rank")


def test_a_log_does_not_say_how_many_ranks_there_were() -> None:
    assert comparable(make_record()) == ("not judged", "how many ranks the run had is not known")


def test_a_missing_rank_is_not_judged() -> None:
    kind, text = comparable(make_record(facts={"ranks": {"world": 2}})) or ("", "")
    assert kind == "not judged"
    assert "only one record" in text


def recorded(folder: Path, script: str, created: float, *, steps: int = 5) -> Path:
    writer = RecordWriter(folder, meta={"created": created})
    for step in range(steps):
        writer.scalar("loss.root", step, 1.0)
    writer.fact("script", {"path": script, "argv": []})
    writer.close()
    return folder


def test_the_last_run_of_the_same_script_is_found(tmp_path: Path) -> None:
    recorded(tmp_path / "oldest", "train.py", 100.0)
    last = recorded(tmp_path / "last", "train.py", 200.0)
    recorded(tmp_path / "other", "eval.py", 300.0)
    recorded(tmp_path / "empty", "train.py", 350.0, steps=0)
    mine = recorded(tmp_path / "mine", "train.py", 400.0)
    recorded(tmp_path / "later", "train.py", 500.0)
    assert earlier_run(mine) == last
    assert earlier_run(tmp_path / "other") is None
    assert earlier_run(tmp_path / "nothing") is None


def test_what_the_same_folder_held_before_is_a_run_too(tmp_path: Path) -> None:
    before = recorded(tmp_path / "run" / "earlier-1", "train.py", 100.0)
    assert earlier_run(recorded(tmp_path / "run", "train.py", 200.0)) == before


def test_a_broken_neighbour_is_passed_over(tmp_path: Path) -> None:
    mine = recorded(tmp_path / "mine", "train.py", 200.0)
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "record-0.sqlite").write_bytes(b"no database")
    assert earlier_run(mine) is None
