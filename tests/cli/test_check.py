"""traindoctor check on a patient() file and on an unmodified script; the user's objects stay as they are."""

from __future__ import annotations

import json
import os
import textwrap
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner, Result
from torch import nn

import traindoctor
from traindoctor.cli import cli
from traindoctor.cli.check import with_fewer_rows
from traindoctor.errors import TraindoctorError
from traindoctor.lm.sources import resolve
from warm_python import warm_run

MODEL = """
import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(30, 16), nn.Embedding(12, 16)
        self.layer = nn.TransformerEncoderLayer(16, 2, 32, 0.0, batch_first=True, norm_first=True)
        self.head = nn.Linear(16, 30)

    def forward(self, x):
        mask = torch.triu(torch.ones(12, 12, dtype=torch.bool), diagonal=DIAGONAL)
        return self.head(self.layer(self.tokens(x) + self.positions.weight, src_mask=mask))


model = Model()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
data = torch.randint(30, (60, 8, 13))


def loss_fn(model, batch):
    return F.cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())
"""
PATIENT = MODEL + "\n\ndef patient():\n    return model, list(data), loss_fn, optimizer\n"
SCRIPT = MODEL + textwrap.dedent(
    """

    for step, batch in enumerate(data):
        loss = loss_fn(model, batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print("step", step)
    """
)


def call(*arguments: str) -> Result:
    return CliRunner().invoke(cli, ["check", *arguments], standalone_mode=False)


def test_a_leak_is_found_before_training(tmp_path: Path) -> None:
    file = tmp_path / "patient.py"
    file.write_text(PATIENT.replace("DIAGONAL", "2"))
    result = call("--json", str(tmp_path / "v.json"), str(file))
    assert result.return_value == 1, result.output
    said = json.loads((tmp_path / "v.json").read_text())
    assert said["causes"][0]["cause"] == "causal-mask-leak"
    rows = {row["exam"]: row for row in said["exams"]}
    assert rows["dependence"]["verdict"] == "CONFIRMED: causal-mask-leak"
    assert rows["dependence"]["value"] > 100 * rows["dependence"]["noise"] > 0
    assert rows["tape_gradient"]["verdict"] == "ok"
    lines = result.output.splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[0].startswith("CONFIRMED     causal-mask-leak; which token sees which: ")
    assert any(line.startswith("ok            gradient by autograd: ") for line in lines)
    assert any("fitting one batch: loss after" in line for line in lines)
    assert "traindoctor explain causal-mask-leak" in result.output


def test_a_script_is_stopped_after_its_first_steps(tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    file.write_text(SCRIPT.replace("DIAGONAL", "2"))
    command = ["-m", "traindoctor", "check", "--json", str(tmp_path / "v.json"), str(file)]
    done = warm_run(command, folder=tmp_path)
    assert done.returncode == 1, done.stderr
    assert "step 20" in done.stdout
    assert "step 40" not in done.stdout
    assert json.loads((tmp_path / "v.json").read_text())["causes"][0]["cause"] == "causal-mask-leak"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["train.py", "v.json"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("def patient():\n    return 3\n", "patient\\(\\) must return"),
        ("def patient():\n    return {'model': 1}\n", "without batches, loss_fn, optimizer"),
        ("def patient(:\n", "is not valid Python"),
        ("def patient():\n    return 1, 2, 3\n", "it returned tuple of 3"),
        ("def patient():\n    return 1, 2, 3, 4\n", "must be an nn.Module"),
        ("print('hello')\n", "nothing was trained"),
    ],
)
def test_a_wrong_patient_is_told_in_a_sentence(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "patient.py"
    file.write_text(text)
    path = os.environ.get("PYTHONPATH")
    with pytest.raises(TraindoctorError, match=message):
        raise call(str(file)).exception or AssertionError("no error")
    # Programs that are started later are no part of the examined run.
    assert "TRAINDOCTOR_RUN" not in os.environ
    assert os.environ.get("PYTHONPATH") == path


def test_the_trainers_settings_are_examined(tmp_path: Path) -> None:
    text = tmp_path / "my.txt"
    text.write_text("the cat sat on the mat and the dog ran to the log. " * 200)
    settings = (
        "--tokenizer word --vocab-size 40 --layers 1 --heads 2 --width 16 --block 16 --batch 4"
    )
    result = call("--json", "-", "--seconds", "60", "--data", str(text), *settings.split())
    assert result.exception is None, result.exception
    said = json.loads(result.output)
    assert (said["verdict"], result.return_value, said["steps"]) == ("healthy", 0, 24)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["my.txt"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--data", "nowhere.txt"], "nowhere.txt"),
        (["--data", "my.txt", "--out", "runs"], "leave --out away"),
        (["--preset", "no-such"], "no-such"),
    ],
)
def test_wrong_settings_of_the_trainer_are_told(arguments: list[str], message: str) -> None:
    with pytest.raises(TraindoctorError, match=message):
        raise call(*arguments).exception or AssertionError("no error")


def test_a_large_model_is_examined_on_fewer_rows(capsys: pytest.CaptureFixture[str]) -> None:
    large = resolve(
        preset=None, file=None, given={"layers": 6, "heads": 6, "width": 384, "block": 256}
    )
    assert with_fewer_rows(large).train.batch == 4
    assert "4 rows here instead of 16" in capsys.readouterr().err
    small = resolve(preset="tiny", file=None, given={})
    assert with_fewer_rows(small) is small


def test_nothing_to_check_is_wrong_use() -> None:
    assert "check needs a script" in str(call().exception)
    assert "there is no file" in str(call("nowhere.py").exception)


def test_check_leaves_model_optimizer_and_randomness_alone() -> None:
    torch.manual_seed(3)
    model = nn.Sequential(nn.Embedding(9, 4), nn.Linear(4, 9))
    optimizer = torch.optim.Adam(model.parameters())
    before = [parameter.clone() for parameter in model.parameters()]
    batch = torch.randint(9, (5, 6))
    state = torch.get_rng_state()
    diagnosis = traindoctor.check(
        model,
        [batch, batch + 0],
        lambda m, b: nn.functional.cross_entropy(m(b).flatten(0, 1), b.flatten()),
        optimizer,
        steps=3,
        seconds=0.0,
    )
    assert diagnosis.steps == 3
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters()))
    assert not optimizer.state
    assert all(parameter.grad is None for parameter in model.parameters())
    assert torch.equal(state, torch.get_rng_state())


def test_a_loss_that_is_no_scalar_is_wrong_use() -> None:
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(
        TraindoctorError, match="must give a scalar tensor, it gave Tensor\\(3, 2\\)"
    ):
        traindoctor.check(model, torch.ones(3, 2), lambda m, b: m(b), optimizer)
