"""`traindoctor diagnose` on logs of other tools: what the curves show, never a verdict on the run."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from traindoctor.cli import cli, main
from traindoctor.errors import TraindoctorError
from traindoctor.record import open_record

NAN = float("nan")


def verdict_on(source: Path, *options: str) -> dict[str, Any]:
    result = CliRunner().invoke(
        cli, ["diagnose", "--json", "-", *options, str(source)], standalone_mode=False
    )
    assert result.exception is None, result.exception
    assert result.return_value == 3  # a log is never healthy, and never sick
    said: dict[str, Any] = json.loads(result.output)
    assert said["verdict"] == "inconclusive"
    assert {cause["status"] for cause in said["causes"]} <= {"possible"}
    assert {left["sentence"] for left in said["untested"]} <= {"a log does not show this"}
    return said


def csv(file: Path, **columns: list[float]) -> Path:
    rows = [",".join(map(str, row)) for row in zip(*columns.values(), strict=True)]
    file.write_text("\n".join([",".join(columns), *rows]) + "\n")
    return file


def falling(count: int = 60, first: float = 4.0) -> list[float]:
    return [first * 0.97**k + 0.02 * (k * 7919 % 11 - 5) / 5 for k in range(count)]


def trainer_state(file: Path) -> Path:
    """The log of a Trainer whose loss is NaN from step 200 on."""
    rows = [
        {
            "step": step,
            "loss": 0.0 if step >= 200 else 3 - step / 250,
            "grad_norm": NAN if step >= 200 else 1.5,
            "learning_rate": 1e-4,
        }
        for step in range(10, 401, 10)
    ]
    file.write_text(json.dumps({"log_history": rows, "global_step": 400}))
    return file


def test_a_trainer_whose_loss_became_nan(tmp_path: Path) -> None:
    said = verdict_on(trainer_state(tmp_path / "trainer_state.json"))
    assert said["reason"].startswith(
        "the loss is logged as 0 and the gradient norm is NaN from step 200 to the end"
    )
    assert said["reason"].endswith("; a log alone proves no cause")  # fmt: skip
    assert said["ruled_out"] == []
    assert said["causes"] == []
    assert said["steps"] == 400
    assert said["notes"][0] == (
        "columns understood: loss (training loss), grad_norm (gradient norm), learning_rate (learning rate)"
    )


def test_columns_that_are_ignored_are_listed_with_the_reason(tmp_path: Path) -> None:
    file = csv(tmp_path / "m.csv", step=[0, 1], loss=[2, 1], accuracy=[0.1, 0.2], norm=[1, 1])
    assert verdict_on(file)["notes"][1] == (
        "columns ignored: accuracy (a score, not a loss), norm (could be a norm of the gradients or of the weights)"
    )


def test_overfitting_is_possible_at_most(tmp_path: Path) -> None:
    steps = [10 * k for k in range(60)]
    rising = [3.0 - 0.1 * k if k < 15 else 1.5 + 0.05 * (k - 15) for k in range(60)]
    said = verdict_on(csv(tmp_path / "m.csv", step=steps, train_loss=falling(), val_loss=rising))
    assert [cause["cause"] for cause in said["causes"]] == ["overfitting"]
    assert said["causes"][0]["confidence"] <= 0.45
    assert "The held-out loss rises from 1.500 (step 150)" in said["symptoms"][-1]["summary"]
    # The sound counterpart: a held-out loss that falls as well is ruled out by its own course.
    both = verdict_on(csv(tmp_path / "n.csv", step=steps, train_loss=falling(), val_loss=falling()))
    assert both["causes"] == []
    assert [row["cause"] for row in both["ruled_out"]] == ["overfitting"]


def test_a_rate_of_zero_is_possible_at_most(tmp_path: Path) -> None:
    flat = [4.0 + 0.001 * (k % 7) for k in range(60)]
    said = verdict_on(csv(tmp_path / "m.csv", loss=flat, lr=[0.0] * 60))
    assert [cause["cause"] for cause in said["causes"]] == ["lr-schedule-wrong"]
    assert said["reason"].startswith("the learning rate is 0 at every logged step")
    steady = verdict_on(csv(tmp_path / "n.csv", loss=flat, lr=[1e-3] * 60))
    assert steady["causes"] == []
    assert steady["reason"].startswith("the loss does not fall: 4.002 at first, 4.002 at the end;")


def test_norms_that_explode_are_possible_at_most(tmp_path: Path) -> None:
    rising = [3.0 + 0.1 * k for k in range(60)]
    said = verdict_on(csv(tmp_path / "m.csv", loss=rising, grad_norm=[1.3**k for k in range(60)]))
    assert [cause["cause"] for cause in said["causes"]] == ["gradients-exploding"]
    assert said["reason"].startswith("the loss rises: 3 at first, 8.65 at the end;")
    calm = verdict_on(csv(tmp_path / "n.csv", loss=rising, grad_norm=[1.0 + k for k in range(60)]))
    assert calm["causes"] == []
    assert [row["cause"] for row in calm["ruled_out"]] == ["gradients-exploding"]


def test_a_blind_guess_is_known_with_the_vocabulary(tmp_path: Path) -> None:
    file = csv(tmp_path / "m.csv", loss=[9.21 + 0.001 * (k % 7) for k in range(60)])
    assert "blind guess" not in verdict_on(file)["reason"]
    said = verdict_on(file, "--vocab-size", "10000")
    assert "the level of a blind guess among 10000 tokens (9.21)" in said["reason"]


def test_a_log_without_a_loss_rules_out_nothing_about_it(tmp_path: Path) -> None:
    said = verdict_on(csv(tmp_path / "m.csv", lr=[1e-3] * 60))
    assert said["reason"].startswith("the log has no training loss;")
    assert said["ruled_out"] == []


def test_an_imported_log_gets_the_same_verdict(tmp_path: Path) -> None:
    source = trainer_state(tmp_path / "trainer_state.json")
    command = ["import", str(source), "-o", str(tmp_path / "run")]
    result = CliRunner().invoke(cli, command, standalone_mode=False)
    assert result.exception is None, result.exception
    first, understood, *_ = result.output.splitlines()
    assert first == f"400 steps, 3 series: {tmp_path / 'run'}"
    assert understood.startswith("columns understood: loss (training loss), ")
    said = verdict_on(tmp_path / "run")
    assert said == verdict_on(source)
    assert open_record(tmp_path / "run").fact("verdict") == said  # what the page and `runs` show


def test_only_what_is_no_run_yet_is_to_be_imported(tmp_path: Path) -> None:
    source = trainer_state(tmp_path / "trainer_state.json")
    run = tmp_path / "run"
    CliRunner().invoke(cli, ["import", str(source), "-o", str(run)], standalone_mode=False)
    said = [
        CliRunner().invoke(cli, ["diagnose", str(one)], standalone_mode=False).output
        for one in (source, run, run / "record-0.sqlite")
    ]
    assert ["traindoctor import" in one for one in said] == [True, False, False]


def test_a_report_of_a_log_has_the_same_verdict(tmp_path: Path) -> None:
    source = trainer_state(tmp_path / "trainer_state.json")
    command = ["report", str(source), "--format", "json"]
    output = CliRunner().invoke(cli, command, standalone_mode=False).output
    assert json.loads(output) == verdict_on(source)


def nothing(folder: Path) -> Path:
    return folder / "nothing"


def written(content: bytes, name: str = "m.csv") -> Any:
    def make(folder: Path) -> Path:
        (folder / name).write_bytes(content)
        return folder / name

    return make


BAD: dict[str, tuple[Any, str]] = {
    "missing": (nothing, "there is nothing at"),
    "empty": (written(b""), "is empty: give a log with a header line and rows"),
    "binary": (written(bytes(range(256)) * 8), "cannot read"),
    "a huge line": (written(b"step,loss\n1," + b"9" * 200_000), "cannot read"),
    "columns a and b": (written(b"a,b\n1,2\n3,4\n"), "no column is understood (a, b)"),
    "mixed columns": (written(b"step,loss\n1,2\n1,2,3\n4,5\n"), "row 3 has 3 cells, the header 2"),
    "wrong types": (written(b"step,loss\n1,red\n2,blue\n"), "loss holds no numbers"),
    "an empty folder": (lambda folder: folder, "holds neither a recorded run nor a log"),
    "half a JSON": (written(b'{"log_history": [', "s.json"), "not JSON"),
    "a pipe": (lambda folder: os.mkfifo(folder / "p.csv") or folder / "p.csv", "regular file"),
}


@pytest.mark.parametrize("command", ["diagnose", "import"])
@pytest.mark.parametrize("what", BAD)
def test_bad_input_is_one_sentence_and_status_2(
    what: str,
    command: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    make, words = BAD[what]
    monkeypatch.setattr("sys.argv", ["traindoctor", command, str(make(tmp_path))])
    with pytest.raises(SystemExit) as ended:
        main()
    said = capsys.readouterr()
    assert ended.value.code == 2
    assert said.out == ""
    assert len(said.err.splitlines()) == 1
    assert words in said.err


def test_import_refuses_to_write_over_a_run(tmp_path: Path) -> None:
    log = tmp_path / "metrics.csv"
    log.write_text("step,loss\n" + "".join(f"{n},{4 - n / 50}\n" for n in range(50)))
    target = tmp_path / "run"
    first = CliRunner().invoke(cli, ["import", str(log), "-o", str(target)], standalone_mode=False)
    assert first.exception is None
    assert "traindoctor ui" in first.output
    before = (target / "record-0.sqlite").read_bytes()
    again = CliRunner().invoke(cli, ["import", str(log), "-o", str(target)], standalone_mode=False)
    assert isinstance(again.exception, TraindoctorError)
    assert "already holds a recorded run: choose another folder with -o" in str(again.exception)
    assert (target / "record-0.sqlite").read_bytes() == before
    assert not list(target.glob("earlier-*"))
