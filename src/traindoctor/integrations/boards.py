"""For those who already have a board: health measures as its curves, the verdict as its text.

    from traindoctor.integrations.boards import TensorBoard, follow
    with traindoctor.watch(model, optimizer) as doctor:
        follow(doctor, TensorBoard("tb"))
        train()

Each board is written through its own public interface and imported when it is used.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from traindoctor.diagnosis import Diagnosis
from traindoctor.errors import TraindoctorError
from traindoctor.logs import OUR_TAG
from traindoctor.record import Record, StoredRecord
from traindoctor.report import markdown
from traindoctor.report.downsample import RATIO, layer_names, layer_rows

if TYPE_CHECKING:
    from traindoctor.doctor import Doctor

# What says how a run is; the rest of a record (checksums, counts of calls) makes no curve.
MEASURES = (
    "loss.root",
    "loss.token",
    "loss.eval",
    "ladder.unigram",
    "ladder.bigram",
    "optim.lr",
    "grad.norm",
    "grad.norm_clipped",
    "grad.nonfinite",
    "param.norm",
    "update.ratio",
    "logits.absmax",
    "scaler.scale",
    "time.step",
    "time.data",
    "memory.rss",
    "memory.cuda",
    "graphs.alive",
)
# Of a layer series the extremes over all layers: hundreds of curves would bury a board.
LAYERS = ("grad.rms", RATIO, "act.dead", "act.input_dependence")
# The most that one call of MLflow takes.
MLFLOW_BATCH = 1000
# A board is told at most so often while the run goes on.
EVERY_SECONDS = 5.0


class Board(Protocol):
    """Where numbers and text go."""

    def scalars(self, step: int, values: Mapping[str, float]) -> None: ...

    def text(self, name: str, text: str, step: int) -> None: ...

    def flush(self) -> None: ...

    def close(self) -> None: ...


def load(module: str, package: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise TraindoctorError(
            f"{package} is not installed: pip install {package}", slug="no-board"
        ) from error


class TensorBoard:
    """Event files in a folder, through torch.utils.tensorboard."""

    def __init__(self, folder: Path | str) -> None:
        self.writer = load("torch.utils.tensorboard", "tensorboard").SummaryWriter(str(folder))

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self.writer.add_scalar(name, value, step)

    def text(self, name: str, text: str, step: int) -> None:
        self.writer.add_text(name, text, step)

    def flush(self) -> None:
        self.writer.flush()

    def close(self) -> None:
        self.writer.close()


class WeightsAndBiases:
    """The run that is active, or a new one. Our curves have their own step: wandb's may be ahead."""

    def __init__(self, **settings: Any) -> None:
        wandb = load("wandb", "wandb")
        self.wandb = wandb
        self.own = wandb.run is None
        self.run = wandb.init(**settings) if self.own else wandb.run
        self.run.define_metric(f"{OUR_TAG}step")
        self.run.define_metric(f"{OUR_TAG}*", step_metric=f"{OUR_TAG}step")

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        self.run.log({f"{OUR_TAG}step": step, **values})

    def text(self, name: str, text: str, step: int) -> None:
        table = self.wandb.Table(columns=["step", "text"], data=[[step, text]])
        self.run.log({f"{OUR_TAG}step": step, name: table})
        # Under a name of its own: the summary's entry of the table is what shows the table.
        self.run.summary[f"{name}_line"] = text.splitlines()[0].lstrip("# ")

    def flush(self) -> None:
        return None

    def close(self) -> None:
        if self.own:
            self.run.finish()


class MLflow:
    """The active run, or a new one."""

    def __init__(self) -> None:
        self.mlflow = load("mlflow", "mlflow")
        self.own = self.mlflow.active_run() is None
        if self.own:
            self.mlflow.start_run()
        self._waiting: list[Any] = []

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        """Gathered: a call is a transaction or a request, and 400 of them took 76 s."""
        now = int(time.time() * 1000)
        metric = self.mlflow.entities.Metric
        self._waiting += [metric(name, value, now, step) for name, value in values.items()]
        if len(self._waiting) >= MLFLOW_BATCH:
            self.flush()

    def flush(self) -> None:
        run = self.mlflow.active_run().info.run_id
        while self._waiting:
            batch, self._waiting = self._waiting[:MLFLOW_BATCH], self._waiting[MLFLOW_BATCH:]
            self.mlflow.MlflowClient().log_batch(run, metrics=batch)

    def text(self, name: str, text: str, step: int) -> None:
        self.mlflow.log_text(text, f"{name}.md")
        self.mlflow.set_tag(name, text.splitlines()[0].lstrip("# "))

    def close(self) -> None:
        if self.own:
            self.mlflow.end_run()


def open_board(name: str, folder: Path) -> Board:
    """The board of that name; `folder` is used by those that write files."""
    makers: dict[str, Any] = {
        "tensorboard": lambda: TensorBoard(folder),
        "wandb": WeightsAndBiases,
        "mlflow": MLflow,
    }
    if name not in makers:
        raise TraindoctorError(f"there is no board {name!r}: choose one of {', '.join(makers)}")
    board: Board = makers[name]()
    return board


class Mirror:
    """Sends a record to a board, each point once, however often it is called while the run grows."""

    def __init__(self, record: Record, board: Board) -> None:
        self.record = record
        self.board = board
        self._sent: dict[str, int] = {}

    def send(self) -> int:
        """Sends what came since the last call; gives the number of points."""
        if isinstance(self.record, StoredRecord):
            self.record.refresh()
        rows: dict[int, dict[str, float]] = {}
        for name in MEASURES:
            series = self.record.get(name)
            if series is None or not len(series):
                continue
            for step, value in series.after(self._sent.get(name, -1) + 1):
                rows.setdefault(step, {})[f"{OUR_TAG}{name}"] = value
            self._sent[name] = int(series.steps[-1])
        for name in LAYERS:
            self._layer_rows(name, rows)
        for step in sorted(rows):
            self.board.scalars(step, rows[step])
        self.board.flush()
        return sum(map(len, rows.values()))

    def _layer_rows(self, name: str, rows: dict[int, dict[str, float]]) -> None:
        if name not in layer_names(self.record):
            return
        series = layer_rows(self.record, name, start=self._sent.get(f"{name}/", -1) + 1)
        for step, values in zip(series.steps.tolist(), series.values):
            finite = values[np.isfinite(values)]
            if len(finite):
                row = rows.setdefault(step, {})
                row[f"{OUR_TAG}{name}/largest"] = float(finite.max())
                row[f"{OUR_TAG}{name}/smallest"] = float(finite.min())
            self._sent[f"{name}/"] = step

    def finish(self, diagnosis: Diagnosis | None) -> None:
        """The rest of the points, the verdict as text, and the end."""
        self.send()
        if diagnosis is not None:
            text = markdown.report(diagnosis)
            self.board.text(f"{OUR_TAG}verdict", text, max(0, diagnosis.steps - 1))
        self.board.close()


def follow(doctor: Doctor, board: Board) -> None:
    """Mirrors a watched run to a board while it goes on, and its verdict when it ends."""
    mirror: Mirror | None = None
    last = 0.0

    def on_step(step: int) -> None:
        nonlocal mirror, last
        if time.monotonic() - last < EVERY_SECONDS or not doctor.watch.has_record:
            return
        last = time.monotonic()
        if mirror is None:
            from traindoctor.record import record_path

            mirror = Mirror(StoredRecord(record_path(doctor.watch.out)), board)
        mirror.send()

    def on_finish(diagnosis: Diagnosis | None) -> None:
        from traindoctor.record import open_record

        if mirror is not None:
            mirror.finish(diagnosis)
        elif doctor.watch.has_record:
            Mirror(open_record(doctor.watch.out), board).finish(diagnosis)

    doctor.watch.listeners.append(on_step)
    doctor.when_finished.append(on_finish)
