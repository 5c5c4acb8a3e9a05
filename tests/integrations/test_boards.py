"""Boards get each number once, and the verdict as text, through their public interfaces."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

import traindoctor
from made_runs import make_run
from traindoctor.diagnosis import diagnose
from traindoctor.errors import TraindoctorError
from traindoctor.integrations.board_beside import BoardBeside, require
from traindoctor.integrations.boards import MEASURES, Mirror, follow, open_board
from traindoctor.logs import read_log
from traindoctor.record import RecordWriter, open_record


class Listener:
    """A board that only remembers."""

    def __init__(self) -> None:
        self.rows: list[tuple[int, dict[str, float]]] = []
        self.texts: list[tuple[str, str, int]] = []
        self.closed = False

    def scalars(self, step, values) -> None:
        self.rows.append((step, dict(values)))

    def text(self, name, text, step) -> None:
        self.texts.append((name, text, step))

    def flush(self) -> None:
        pass

    def close(self) -> None:
        self.closed = True


def test_a_growing_record_is_sent_point_by_point_once(tmp_path: Path) -> None:
    writer = RecordWriter(tmp_path)
    board = Listener()
    writer.scalar("grad.norm", 0, 1.0)
    writer.layers("grad.rms", 0, ["a", "b"], [0.1, float("nan")])
    writer.flush()
    mirror = Mirror(open_record(tmp_path), board)
    assert mirror.send() == 3
    assert mirror.send() == 0
    writer.scalar("grad.norm", 1, 2.0)
    writer.scalar("weights.crc", 1, 2.0)  # a checksum makes no curve
    writer.close()
    assert mirror.send() == 1
    assert board.rows[-1] == (1, {"traindoctor/grad.norm": 2.0})
    assert board.rows[0][1]["traindoctor/grad.rms/largest"] == pytest.approx(0.1)


def test_tensorboard_reads_what_was_written(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    record = open_record(make_run(tmp_path / "run", steps=30))
    Mirror(record, open_board("tensorboard", tmp_path / "tb")).finish(diagnose(record))
    events = EventAccumulator(str(tmp_path / "tb"))
    events.Reload()
    norms = events.Scalars("traindoctor/grad.norm")
    assert [event.step for event in norms] == list(range(30))
    assert norms[7].value == pytest.approx(record["grad.norm"].at(7))
    assert "traindoctor/update.ratio/largest" in events.Tags()["scalars"]
    (text,) = events.Tensors("traindoctor/verdict/text_summary")
    assert b"# Verdict" in text.tensor_proto.string_val[0]


def test_what_a_board_was_told_is_imported_under_its_own_names(tmp_path: Path) -> None:
    record = open_record(make_run(tmp_path / "run", steps=30))
    board = open_board("tensorboard", tmp_path / "tb")
    # The script logs to the same folder, counts from 1 and means another loss.
    for step in range(30):
        board.scalars(step + 1, {"train/loss": 100.0 + step, "accuracy": 0.5})
    Mirror(record, board).finish(diagnose(record))
    found = read_log(tmp_path / "tb")
    mirrored = [name for name in MEASURES if record.get(name) is not None]
    assert {"loss.root", "grad.norm", "optim.lr"} <= set(mirrored)
    for name in mirrored:
        assert found[name].steps.tolist() == record[name].steps.tolist()
        assert found[name].values == pytest.approx(record[name].values, rel=1e-6, nan_ok=True)
    assert found["log.train_loss"].values.tolist() == [100.0 + step for step in range(30)]
    # Extremes over layers are no series of a record.
    others = set(found.names) - set(mirrored)
    assert others >= {"log.accuracy", "log.update_ratio_largest"}
    assert all(name.startswith("log.") for name in others)


class FakeRun:
    def __init__(self) -> None:
        self.logged: list[dict[str, Any]] = []
        self.metrics: list[tuple[str, Any]] = []
        self.summary: dict[str, Any] = {}
        self.finished = False

    def define_metric(self, name: str, step_metric: str | None = None) -> None:
        self.metrics.append((name, step_metric))

    def log(self, values: dict[str, Any]) -> None:
        self.logged.append(values)

    def finish(self) -> None:
        self.finished = True


@pytest.mark.parametrize("active", [True, False])
def test_wandb_joins_the_active_run_with_a_step_of_its_own(tmp_path, monkeypatch, active) -> None:
    fake, run = ModuleType("wandb"), FakeRun()
    fake.run = run if active else None
    fake.init = lambda **settings: run
    fake.Table = lambda columns, data: SimpleNamespace(columns=columns, data=data)
    monkeypatch.setitem(sys.modules, "wandb", fake)
    record = open_record(make_run(tmp_path / "run", steps=5))
    Mirror(record, open_board("wandb", tmp_path)).finish(diagnose(record))
    assert ("traindoctor/*", "traindoctor/step") in run.metrics
    assert run.logged[3]["traindoctor/step"] == 3
    assert run.logged[-1]["traindoctor/verdict"].data[0][1].startswith("# Verdict")
    assert run.summary["traindoctor/verdict_line"].startswith("Verdict")
    # The user's own run is the user's to end.
    assert run.finished is not active


def test_mlflow_gets_metrics_a_tag_and_the_text(tmp_path, monkeypatch) -> None:
    calls: list[tuple[Any, ...]] = []
    fake = ModuleType("mlflow")
    active: list[Any] = []
    fake.active_run = lambda: active[0] if active else None
    for name in ("end_run", "log_text", "set_tag"):
        setattr(fake, name, lambda *a, name=name: calls.append((name, *a)))
    fake.start_run = lambda: active.append(SimpleNamespace(info=SimpleNamespace(run_id="r1")))
    fake.entities = SimpleNamespace(Metric=lambda *row: row)
    fake.MlflowClient = lambda: SimpleNamespace(
        log_batch=lambda run, metrics: calls.append(("log_batch", run, metrics))
    )
    monkeypatch.setitem(sys.modules, "mlflow", fake)
    record = open_record(make_run(tmp_path / "run", steps=4))
    Mirror(record, open_board("mlflow", tmp_path)).finish(diagnose(record))
    (_, run, metrics), *_ = calls
    assert run == "r1"
    assert [step for name, _, _, step in metrics if name == "traindoctor/grad.norm"] == [0, 1, 2, 3]
    assert ("log_text", "traindoctor/verdict.md") == next(
        (call[0], call[2]) for call in calls if call[0] == "log_text"
    )
    assert calls[-1] == ("end_run",)


def test_a_board_that_is_not_installed_says_what_to_do(tmp_path, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(TraindoctorError, match="pip install wandb"):
        open_board("wandb", tmp_path)
    with pytest.raises(TraindoctorError, match="choose one of"):
        open_board("excel", tmp_path)


def train(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
    for _ in range(6):
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(torch.ones(4, 3)), torch.zeros(4, 2)).backward()
        optimizer.step()


def test_a_watched_run_is_followed_to_its_verdict_and_report(tmp_path: Path) -> None:
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    board = Listener()
    with traindoctor.watch(model, optimizer, out=tmp_path / "run", after=0, quiet=True) as doctor:
        follow(doctor, board)
        train(model, optimizer)
    sent = [step for step, values in board.rows if "traindoctor/loss.root" in values]
    assert sent == list(range(6))
    assert board.texts[0][0] == "traindoctor/verdict"
    assert board.closed
    assert "<iframe" in doctor.report()._repr_html_()


def test_a_board_that_fails_does_not_fail_the_run(tmp_path: Path, capsys) -> None:
    class Broken(Listener):
        def close(self) -> None:
            raise OSError("the disk is full")

    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with traindoctor.watch(model, optimizer, out=tmp_path / "run", after=0) as doctor:
        follow(doctor, Broken())
        train(model, optimizer)
    assert doctor.diagnosis is not None
    assert "the disk is full" in capsys.readouterr().err


def test_a_process_beside_the_run_tells_the_board_and_its_verdict(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    beside = BoardBeside("tensorboard", make_run(tmp_path / "run", steps=20))
    assert beside.finish() == f"measures and verdict are in {tmp_path / 'run' / 'tensorboard'}"
    seen = EventAccumulator(str(tmp_path / "run" / "tensorboard")).Reload()
    assert len(seen.Scalars("traindoctor/grad.norm")) == 20
    assert "traindoctor/verdict/text_summary" in seen.Tags()["tensors"]


def test_a_board_that_fails_is_one_line_and_its_log(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", steps=5)
    (run / "tensorboard").write_text("a file where a folder should be")
    assert "tensorboard could not be told" in BoardBeside("tensorboard", run).finish()
    assert (run / "board.log").read_text()


def test_a_board_that_is_not_installed_is_told_before_the_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(TraindoctorError, match="pip install wandb"):
        require("wandb")


def test_a_run_that_recorded_nothing_is_told_so(tmp_path: Path) -> None:
    assert "nothing was recorded" in BoardBeside("tensorboard", tmp_path).finish()
