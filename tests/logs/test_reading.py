"""Logs of other tools become series of ours; what cannot be read is told."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from traindoctor.errors import RecordError
from traindoctor.record import open_record
from traindoctor.record.importers import import_log, read_log


@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
def test_a_csv(tmp_path: Path, delimiter: str) -> None:
    lines = ["step,train/loss,lr,grad_norm,Val Loss", "0,5.0,1e-3,2.5,", "10,4.0,nan,2.0,4.5"]
    file = tmp_path / "metrics.csv"
    file.write_text("\n".join(lines).replace(",", delimiter))
    record = read_log(file)
    assert record["loss.root"].steps.tolist() == [0, 10]
    assert record["loss.root"].values.tolist() == [5.0, 4.0]
    assert record["loss.eval"].values.tolist() == [4.5]
    assert record["grad.norm"].values.tolist() == [2.5, 2.0]
    assert record.num_steps == 11


def test_an_imported_run_has_ended(tmp_path: Path) -> None:
    file = tmp_path / "metrics.csv"
    file.write_text("loss\n3.0\n2.0\n")
    assert open_record(import_log(file, tmp_path / "run")).fact("run.ended") == 0


def test_a_csv_without_steps_counts_its_rows(tmp_path: Path) -> None:
    file = tmp_path / "metrics.csv"
    file.write_text("loss\n3.0\n2.0\n1.0\n")
    assert read_log(file)["loss.root"].steps.tolist() == [0, 1, 2]


def test_a_trainer_state(tmp_path: Path) -> None:
    state = {
        "global_step": 20,
        "log_history": [
            {"step": 10, "loss": 2.0, "learning_rate": 1e-4, "grad_norm": 1.0, "epoch": 0.5},
            {"step": 10, "eval_loss": 2.5},
            {"step": 20, "loss": 1.0, "learning_rate": 5e-5, "grad_norm": 0.5, "epoch": 1.0},
        ],
    }
    file = tmp_path / "trainer_state.json"
    file.write_text(json.dumps(state))
    record = read_log(file)
    assert record["loss.root"].values.tolist() == [2.0, 1.0]
    assert record["optim.lr"].values.tolist() == [1e-4, 5e-5]
    assert record["loss.eval"].steps.tolist() == [10]
    assert record["log.epoch"].values.tolist() == [0.5, 1.0]  # nothing is thrown away


def test_json_lines(tmp_path: Path) -> None:
    file = tmp_path / "log.jsonl"
    file.write_text('{"iter": 1, "loss": 3.0}\n{"iter": 2, "loss": 2.5}\n')
    assert read_log(file)["loss.root"].steps.tolist() == [1, 2]


def test_a_tensorboard_folder(tmp_path: Path) -> None:
    tensorboard = pytest.importorskip("torch.utils.tensorboard")
    with tensorboard.SummaryWriter(str(tmp_path)) as board:
        for step in range(5):
            board.add_scalar("train/loss", 5.0 - step, step)
    record = read_log(tmp_path)
    assert record["loss.root"].values.tolist() == [5.0, 4.0, 3.0, 2.0, 1.0]


def test_our_own_curves_in_another_tools_table(tmp_path: Path) -> None:
    """As a board gives them away: its own step is ahead of ours."""
    file = tmp_path / "board.csv"
    file.write_text("Step,traindoctor/step,traindoctor/grad.norm\n7,0,1.5\n9,1,1.25\n")
    record = read_log(file)
    assert list(record.names) == ["grad.norm"]
    assert record["grad.norm"].steps.tolist() == [0, 1]


def test_an_imported_log_is_a_run(tmp_path: Path) -> None:
    file = tmp_path / "metrics.csv"
    file.write_text("step,loss\n0,3.0\n1,2.0\n")
    import_log(file, tmp_path / "run")
    record = open_record(tmp_path / "run")
    assert record["loss.root"].values.tolist() == [3.0, 2.0]
    assert record.fact("imported")["from"] == "metrics.csv"


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("empty.csv", "", "no rows"),
        ("words.csv", "name,colour\nann,red\n", "no number"),
        ("broken.json", "{", "no JSON"),
        ("list.json", "[1, 2]", "no training log"),
        ("bytes.csv", "\udcff", "cannot read"),
    ],
)
def test_what_is_no_log_is_told(tmp_path: Path, name: str, content: str, words: str) -> None:
    file = tmp_path / name
    file.write_bytes(content.encode("utf-8", "surrogateescape"))
    with pytest.raises(RecordError, match=words):
        read_log(file)
