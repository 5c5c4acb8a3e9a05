"""The list of runs, and ranks beside each other."""

from __future__ import annotations

from pathlib import Path

import pytest

from traindoctor.errors import RecordError
from traindoctor.record import RecordWriter, agreement, comparable, make_record
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
    left, right = make_record({"x": [1.0, 2.0, 3.0, 4.0]}), make_record({"x": [1.0, 2.5, 3.0]})
    record = make_record({"x": [1.0, 2.0, 3.0, 4.0]}, ranks=[left, right])
    found = agreement(record, "x")
    assert (found.steps, found.equal, found.first_difference) == (3, 2, 1)
    assert found.last_equal > found.first_difference


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
