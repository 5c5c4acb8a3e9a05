"""Logs of other tools become series of ours; what cannot be read is told."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from traindoctor.errors import RecordError
from traindoctor.logs import read_log, write_log
from traindoctor.logs.names import understand
from traindoctor.record import open_record


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
    assert open_record(write_log(read_log(file), tmp_path / "run", file)).fact("run.ended") == 0


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
    write_log(read_log(file), tmp_path / "run", file)
    record = open_record(tmp_path / "run")
    assert record["loss.root"].values.tolist() == [3.0, 2.0]
    assert record.fact("imported")["from"] == "metrics.csv"


STEPS = range(30)


def loss(step: int) -> float:
    return 5.0 - step / 10


def written(file: Path, text: str) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    return file


def csv_of_wandb(folder: Path) -> Path:
    rows = [f"{k},{loss(k)},{loss(k) - 1},{loss(k) + 1},6.0" for k in STEPS]
    head = '"Step","run-1 - train/loss","run-1 - train/loss__MIN","run-1 - train/loss__MAX","run-1 - eval/loss"'
    return written(folder / "wandb_export.csv", "\n".join([head, *rows]))


def history_of_wandb(folder: Path) -> Path:
    """The logger's own step counts its calls: the Trainer's goes before it."""
    rows = [
        {"_step": 2 * k, "_runtime": 1.5 * k, "train/loss": loss(k), "train/global_step": k}
        for k in STEPS
    ]
    rows += [{"_step": 99, "eval/loss": 6.0, "train/global_step": 29}]
    return written(folder / "wandb-history.jsonl", "\n".join(map(json.dumps, rows)))


def nested_json_lines(folder: Path) -> Path:
    rows = [{"step": k, "train": {"loss": loss(k)}, "val": {"loss": 6.0}} for k in STEPS]
    return written(folder / "log.txt", "\n".join(map(json.dumps, rows)))


def folder_of_mlflow(folder: Path) -> Path:
    metrics = folder / "mlruns" / "0" / "5f3c" / "metrics"
    lines = [f"{1_700_000_000_000 + k} {loss(k)} {k}" for k in STEPS]
    written(metrics / "train" / "loss", "\n".join(lines) + "\n")
    written(metrics / "val.loss", "1700000000000 6.0 29\n")
    return folder / "mlruns"


def csv_of_mlflow(folder: Path) -> Path:
    rows = [f"5f3c,train_loss,{loss(k)},{k},1700000000" for k in STEPS]
    rows += ["5f3c,val_loss,6.0,29,1700000000"]
    return written(folder / "mlflow.csv", "\n".join(["run_id,key,value,step,timestamp", *rows]))


def csv_of_lightning(folder: Path) -> Path:
    head = "epoch,step,train_loss_epoch,train_loss_step,val_loss,lr-AdamW"
    rows = [f"0,{k},,{loss(k)},,0.001" for k in STEPS] + ["0,29,3.5,,6.0,"]
    file = folder / "lightning_logs" / "version_0" / "metrics.csv"
    return written(file, "\n".join([head, *rows])).parents[1]


def state_of_a_trainer(folder: Path) -> Path:
    history = [{"step": k, "loss": loss(k), "epoch": k / 30} for k in STEPS]
    history += [{"step": 29, "eval_loss": 6.0}, {"step": 29, "train_loss": 3.5, "total_flos": 1e9}]
    for number in (9, 29, 100):
        rows = history if number == 100 else history[: number + 1]
        state = json.dumps({"log_history": rows})
        written(folder / "out" / f"checkpoint-{number}" / "trainer_state.json", state)
    return folder / "out"


def events_in_two_folders(folder: Path) -> Path:
    tensorboard = pytest.importorskip("torch.utils.tensorboard")
    for split, of in (("train", loss), ("validation", lambda step: 6.0)):
        with tensorboard.SummaryWriter(str(folder / "board" / split)) as board:
            for k in STEPS:
                board.add_scalar("loss", of(k), k)
    return folder / "board"


def events_of_add_scalars(folder: Path) -> Path:
    tensorboard = pytest.importorskip("torch.utils.tensorboard")
    with tensorboard.SummaryWriter(str(folder / "board")) as board:
        for k in STEPS:
            board.add_scalar("lr", 1e-3, k)
            board.add_scalars("loss", {"train": loss(k), "val": 6.0}, k)
    return folder / "board"


def events_of_a_host_named_dev(folder: Path) -> Path:
    """A word of the folder's name is not the name of a split."""
    tensorboard = pytest.importorskip("torch.utils.tensorboard")
    with tensorboard.SummaryWriter(str(folder / "runs" / "Nov17_10-00_host-dev")) as board:
        for k in STEPS:
            board.add_scalar("train/loss", loss(k), k)
        board.add_scalar("eval/loss", 6.0, 29)
    return folder / "runs"


def perplexities(folder: Path) -> Path:
    rows = [f"{k},{math.exp(loss(k))},{math.exp(6.0)}" for k in STEPS]
    return written(folder / "p.csv", "\n".join(["iter,train_ppl,valid_perplexity", *rows]))


def our_own_export(folder: Path) -> Path:
    rows = [f"0,{k},loss.root,,{loss(k)}" for k in STEPS] + ["0,29,loss.eval,,6.0"]
    rows += ["1,0,loss.root,,99.0", "0,0,grad.rms,block.0,3.0"]
    return written(folder / "run.csv", "\n".join(["rank,step,series,layer,value", *rows]))


@pytest.mark.parametrize(
    "make",
    [
        csv_of_wandb,
        history_of_wandb,
        nested_json_lines,
        folder_of_mlflow,
        csv_of_mlflow,
        csv_of_lightning,
        state_of_a_trainer,
        events_in_two_folders,
        events_of_add_scalars,
        events_of_a_host_named_dev,
        perplexities,
        our_own_export,
    ],
)
def test_the_same_run_in_every_form(tmp_path: Path, make: Callable[[Path], Path]) -> None:
    record = read_log(make(tmp_path))
    assert record["loss.root"].steps.tolist() == list(STEPS)
    assert record["loss.root"].values == pytest.approx([loss(k) for k in STEPS])
    assert record["loss.eval"].last == pytest.approx(6.0)


def test_the_download_of_one_curve_is_named_by_its_file(tmp_path: Path) -> None:
    text = "Wall time,Step,Value\n1.7e9,0,5.0\n1.7e9,1,4.0\n"
    record = read_log(written(tmp_path / "run-a-tag-train_loss.csv", text))
    assert record["loss.root"].values.tolist() == [5.0, 4.0]


@pytest.mark.parametrize(
    ("name", "series"),
    [
        ("train/loss", "loss.root"),
        ("Train Loss", "loss.root"),
        ("train_loss_step", "loss.root"),
        ("lm-loss", "loss.root"),
        ("reduced_train_loss", "loss.root"),
        ("loss_metrics/global_avg_loss", "loss.root"),
        ("train.loss", "loss.root"),
        ("perplexity", "loss.root"),
        ("eval/loss", "loss.eval"),
        ("val_loss", "loss.eval"),
        ("loss/val", "loss.eval"),
        ("validation_loss", "loss.eval"),
        ("val_perplexity", "loss.eval"),
        ("lr", "optim.lr"),
        ("train/learning_rate", "optim.lr"),
        ("lr-AdamW", "optim.lr"),
        ("lr-AdamW/pg1", "optim.lr"),
        ("grad_norm", "grad.norm"),
        ("train/gradient_norm", "grad.norm"),
        ("grad_2.0_norm_total", "grad.norm"),
        ("loss-scale", "scaler.scale"),
    ],
)
def test_usual_names_are_understood(name: str, series: str) -> None:
    assert understand(name).series == series


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("accuracy", "a score, not a loss"),
        ("eval/rougeL_f1", "a score, not a loss"),
        ("epoch", "time or amount, not needed"),
        ("train_samples_per_second", "time or amount, not needed"),
        ("norm", "could be a norm of the gradients or of the weights"),
        ("clip", "could be a clip limit or a share of clipped steps"),
        ("eval/train_loss", "could be of training or of validation"),
        ("router_z_loss", "could be a term of the loss or another loss"),
        ("temperature", "not a known name"),
    ],
)
def test_other_names_are_ignored_with_the_reason(name: str, why: str) -> None:
    column = understand(name)
    assert (column.series, column.why) == (None, why)


def test_of_two_columns_of_one_series_the_fuller_is_taken(tmp_path: Path) -> None:
    """A Trainer writes the mean over the whole run beside the last loss."""
    log = read_log(state_of_a_trainer(tmp_path)).fact("imported")
    assert log["used"] == {"loss": "loss.root", "eval_loss": "loss.eval"}
    assert log["ignored"]["train_loss"] == "the training loss is taken from loss"


def test_the_vocabulary_of_a_checkpoint_is_known(tmp_path: Path) -> None:
    folder = state_of_a_trainer(tmp_path) / "checkpoint-100"
    assert read_log(folder).fact("imported")["vocab_size"] is None
    written(folder / "config.json", json.dumps({"vocab_size": 50257}))
    assert read_log(folder).fact("imported")["vocab_size"] == 50257
    assert read_log(folder, vocab_size=100).fact("imported")["vocab_size"] == 100


@pytest.mark.parametrize(
    ("text", "remark"),
    [
        ("step,loss\n0,3.0\n1,2.0\n2", "the last row is cut off and was left out"),
        (
            "step,loss\n0,3.0\n5,2.0\nstep,loss\n1,2.0\n",
            "the header stands again in row 4: the log was continued",
        ),
        (
            "step,loss\n0,3.0\n5,2.0\n1,2.5\n",
            "steps of loss go back from 5 to 1: of one step the later number counts",
        ),
        ("step,loss\n0,3.0\n1,2.0\n", None),
        ("step,loss\n0,3.0\n1,tensor(2.0)\n", "1 cells of loss are not numbers (tensor(2.0))"),
        ("loss\n3.0\n2.0\n", "no column of steps: rows are counted"),
        ('{"step": 0, "loss": 3.0}\n{"step": 1, "los', "the last line is cut off and was left out"),
    ],
)
def test_what_was_left_out_is_said(tmp_path: Path, text: str, remark: str | None) -> None:
    remarks = read_log(written(tmp_path / "log.txt", text)).fact("imported")["remarks"]
    assert remarks[:1] == ([remark] if remark else [])


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("empty.csv", b"", "is empty: give a log with a header line and rows"),
        ("blank.csv", b" \n \n", "is empty: give a log"),
        ("head.csv", b"step,loss\n", "has no rows: a line that names the columns"),
        ("bare.csv", b"1,2\n3,4\n", "has no header: a line that names the columns"),
        ("ab.csv", b"a,b\n1,2\n", "no column is understood (a, b); a log needs columns such as"),
        ("words.csv", b"step,loss\n1,red\n", "no column is understood (loss); loss holds no numb"),
        ("twice.csv", b"step,loss,loss\n1,2,3\n", "has two columns named loss: rename or remove"),
        (
            "mixed.csv",
            b"step,loss\n1,2\n1,2,3\n4,5\n",
            "row 3 has 3 cells, the header 2; where two",
        ),
        ("two.csv", b"Step,a - loss,b - loss\n1,2,3\n", "holds 2 runs (a, b): give the log of one"),
        ("long.csv", b"step,loss\n1," + b"9" * 200_000, "field larger than field limit"),
        ("nul.csv", b"step,loss\n1,\x00\n", "it is not text): give a CSV or JSON log"),
        ("bytes.csv", b"\xff\xfe\x00", "it is not UTF-8 text (byte 0)): give a CSV or JSON log"),
        ("broken.json", b"{", "not JSON"),
        ("list.json", b"[1, 2]", "is not a training log: a trainer_state.json"),
        ("middle.jsonl", b'{"loss": 1}\n{"lo\n{"loss": 2}\n', "line 2 is not JSON"),
        ("rows.jsonl", b'{"loss": 1}\n[2]\n', "line 2 is not an object; one object per line"),
        ("back.csv", b"step,loss\n-5,1\n", "row 1 has step -5, which is not a count"),
    ],
)
def test_what_is_no_log_is_told(tmp_path: Path, name: str, content: bytes, words: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(RecordError, match=re.escape(words)):
        read_log(tmp_path / name)


def test_a_folder_without_a_log_and_one_of_several_runs(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match="neither a recorded run nor a log: give a run's folder"):
        read_log(tmp_path)
    for name in ("a", "b"):
        written(tmp_path / "board" / name / "events.out.tfevents.1.host", "")
    with pytest.raises(RecordError, match=r"holds 2 runs \(a, b\): give the log of one of them"):
        read_log(tmp_path / "board")
    for name in ("one", "two"):
        written(tmp_path / "logs" / name / "metrics.csv", "step,loss\n1,2\n")
        metric = tmp_path / "mlruns" / "0" / name / "metrics" / "loss"
        written(metric, "1700000000000 2.0 1\n")
    with pytest.raises(
        RecordError, match=r"holds 2 runs \(one/metrics.csv, two/metrics.csv\): give"
    ):
        read_log(tmp_path / "logs")
    with pytest.raises(RecordError, match=r"holds 2 runs \(0/one, 0/two\): give the log of one"):
        read_log(tmp_path / "mlruns")
