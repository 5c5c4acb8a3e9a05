"""What `traindoctor run` says and gives back: verdict, status, silence."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from warm_python import warm_run

SICK = """
import sys
import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
tokens, head = nn.Embedding(20, 16), nn.Linear(16, 20)
layer = nn.TransformerEncoderLayer(16, 2, 32, 0.0, batch_first=True, norm_first=True)
model = nn.Sequential(tokens, layer, head)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for step in range(40):
    text = torch.randint(20, (8, 13))
    loss = F.cross_entropy(model(text[:, :-1]).flatten(0, 1), text[:, 1:].flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print("step", step)
sys.exit(7)
"""


def run(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    script = folder / "train.py"
    script.write_text(SICK)
    command = ["-m", "traindoctor", "run", "--out", str(folder / "run")]
    # However slow the machine is, there is time for the tests of the first steps.
    command += ["--budget", "50", "--json", str(folder / "v.json"), *options, str(script)]
    return warm_run(command, folder=folder)


def test_the_verdict_goes_to_standard_error_and_the_status_is_the_scripts(tmp_path: Path) -> None:
    done = run(tmp_path, "--after", "0")
    assert done.returncode == 7
    assert done.stdout.splitlines()[-1] == "step 39"
    assert "traindoctor" not in done.stdout
    said = json.loads((tmp_path / "v.json").read_text())
    assert said["verdict"] == "sick"
    assert said["causes"][0]["cause"] == "causal-mask-leak"
    assert said["causes"][0]["proven_step"] <= 20
    assert said["steps"] == 40
    assert "traindoctor: SICK, causal-mask-leak (confirmed)" in done.stderr
    assert done.stderr.count("causal-mask-leak confirmed:") == 1
    assert done.stderr.endswith(
        "  next       traindoctor explain causal-mask-leak\n"
        "             traindoctor ui run\n"
        "             traindoctor report run\n"
        f"  recorded in {tmp_path / 'run'}\n"
    )


def test_strict_stop_and_quiet(tmp_path: Path) -> None:
    done = run(tmp_path, "--strict", "--stop-when-sick", "--quiet", "--after", "0")
    assert done.returncode == 1
    assert done.stderr == ""
    assert len(done.stdout.splitlines()) < 20
    assert json.loads((tmp_path / "v.json").read_text())["verdict"] == "sick"


def test_a_script_that_trains_nothing_is_inconclusive(tmp_path: Path) -> None:
    (tmp_path / "idle.py").write_text("print('nothing')\n")
    command = [sys.executable, "-m", "traindoctor", "run", "--out", str(tmp_path / "run")]
    command += ["--json", str(tmp_path / "v.json"), str(tmp_path / "idle.py")]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0
    assert done.stdout == "nothing\n"
    assert done.stderr.startswith(
        "traindoctor: INCONCLUSIVE [0 steps]\n  why        nothing was trained"
    )
    assert "  recorded   nothing\n" in done.stderr
    assert json.loads((tmp_path / "v.json").read_text())["verdict"] == "inconclusive"


@pytest.mark.parametrize(
    ("line", "said", "status"),
    [
        (
            "raise ValueError('no data')",
            "the script ended with ValueError before training: no data",
            1,
        ),
        (
            "import not_a_module",
            "the script ended with ModuleNotFoundError before training: No module named "
            "'not_a_module'",
            1,
        ),
        ("raise SystemExit(3)", "the script ended with status 3 before training", 3),
        (
            "raise RuntimeError('bad login, api_key=abcdef0123456789abcdef0123456789')",
            "the script ended with RuntimeError before training: bad login, api_key=[redacted]",
            1,
        ),
    ],
)
def test_a_script_that_ends_before_it_trains_is_told_as_such(
    tmp_path: Path, line: str, said: str, status: int
) -> None:
    (tmp_path / "early.py").write_text(f"{line}\n")
    command = [sys.executable, "-m", "traindoctor", "run", "--out", str(tmp_path / "run")]
    command += ["--json", str(tmp_path / "v.json")]
    done = subprocess.run([*command, "early.py"], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == status
    verdict = done.stderr.partition("traindoctor: INCONCLUSIVE [0 steps]\n")[2]
    assert " ".join(verdict.split()).startswith(f"why {said} recorded nothing next ")
    assert max(map(len, verdict.splitlines())) <= 80
    assert json.loads((tmp_path / "v.json").read_text())["reason"] == said


def test_an_option_that_does_not_exist_is_no_script(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "traindoctor", "run", "--bugdet", "3", "train.py"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 2
    assert "No such option '--bugdet'. Did you mean '--budget'?" in done.stderr


def test_what_follows_the_script_is_the_scripts(tmp_path: Path) -> None:
    (tmp_path / "idle.py").write_text("import sys; print(sys.argv[1:])")
    command = [sys.executable, "-m", "traindoctor", "run", "--quiet", "idle.py", "--out", "-m", "x"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert done.stdout == "['--out', '-m', 'x']\n"
