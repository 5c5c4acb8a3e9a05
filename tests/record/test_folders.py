"""Folders of runs are renamed and deleted; what is not a run's own stays, and so does what is being written."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from traindoctor.record import RecordWriter, open_record
from traindoctor.record.folders import NotDone, contents, delete_run, is_running, rename_run


def make(folder: Path, *, ended: bool = True) -> Path:
    writer = RecordWriter(folder)
    writer.scalar("loss.root", 0, 1.0)
    if ended:
        writer.fact("run.ended", 0)
    writer.close()
    return folder


def age(folder: Path, seconds: float) -> None:
    for file in folder.glob("record-*"):
        os.utime(file, (time.time() - seconds,) * 2)


def test_a_run_gets_another_name_and_stays_where_it_is(tmp_path: Path) -> None:
    run = make(tmp_path / "sweep" / "old")
    made = rename_run(run, "lr 1e-3, größer")
    assert made == tmp_path / "sweep" / "lr 1e-3, größer"
    assert open_record(made)["loss.root"].last == 1.0
    assert not run.exists()


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("", "is empty"),
        ("  ", "is empty"),
        ("../outside", "cannot contain '/'"),
        ("a\\b", "cannot contain"),
        ("..", "cannot begin with a dot"),
        (".hidden", "cannot begin with a dot"),
        ("-rf", "cannot begin with a dot, a dash"),
        (" x", "spaces around it"),
        ("nul\0", "a control character"),
        ("line\nbreak", "a control character"),
        ("half \ud800", "not valid text"),
        ("ü" * 200, "400 bytes"),
        ("earlier-1", "a part of a run"),
        ("taken", "already something called"),
        ("Notes.txt", "already something called"),
    ],
)
def test_a_hostile_or_taken_name_is_a_sentence(tmp_path: Path, name: str, said: str) -> None:
    run = make(tmp_path / "run")
    make(tmp_path / "taken")
    (tmp_path / "Notes.txt").write_text("x")
    with pytest.raises(NotDone, match=said) as told:
        rename_run(run, name)
    assert "\n" not in str(told.value)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["Notes.txt", "run", "taken"]


def test_a_run_is_deleted_with_all_that_traindoctor_made(tmp_path: Path) -> None:
    run = make(tmp_path / "run")
    make(run / "earlier-1")
    (run / "checkpoints" / "step-10").mkdir(parents=True)
    (run / "checkpoints" / "step-10" / "model.safetensors").write_bytes(b"x" * 100)
    (run / "report.html").write_text("x")
    found = contents(run)
    assert found.files == 4
    assert set(found.entries) == {"checkpoints", "earlier-1", "record-0.sqlite", "report.html"}
    delete_run(run)
    assert not run.exists()


def test_what_somebody_else_put_there_is_not_deleted(tmp_path: Path) -> None:
    """`traindoctor run --out . train.py` records a run beside its own source."""
    run = make(tmp_path / "project")
    (run / "train.py").write_text("print()")
    (run / "src").mkdir()
    with pytest.raises(NotDone, match=r"also holds src/, train.py, which traindoctor did not make"):
        delete_run(run)
    assert (run / "train.py").exists()
    assert open_record(run)["loss.root"].last == 1.0


def test_a_running_run_stays_as_it_is(tmp_path: Path) -> None:
    run = make(tmp_path / "run", ended=False)
    assert is_running(run)
    with pytest.raises(NotDone, match="is still running: it can be deleted when it has ended"):
        delete_run(run)
    with pytest.raises(NotDone, match="is still running: it can be renamed when it has ended"):
        rename_run(run, "other")
    age(run, 3600)  # killed an hour ago
    assert not is_running(run)
    delete_run(run)


def test_one_rank_that_still_writes_is_enough(tmp_path: Path) -> None:
    run = make(tmp_path / "run")
    other = RecordWriter(run, rank=1)
    other.scalar("loss.root", 0, 1.0)
    other.close()
    assert is_running(run)


def test_a_further_process_that_still_writes_is_enough(tmp_path: Path) -> None:
    run = make(tmp_path / "run")
    make(run / "process-12", ended=False)
    assert is_running(run)


def test_an_unreadable_run_can_be_deleted(tmp_path: Path) -> None:
    run = tmp_path / "broken"
    run.mkdir()
    (run / "record-0.sqlite").write_text("not a record")
    delete_run(run)
    assert not run.exists()
