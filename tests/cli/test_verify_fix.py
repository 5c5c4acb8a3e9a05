"""`run --verify-fix` and `--json -`: what the change did, and standard output with the JSON alone."""

from __future__ import annotations

import json
import random
from pathlib import Path

import jsonschema
import pytest
from click.testing import CliRunner

from fixes.spellings import changed, zero_grad
from traindoctor.cli import cli, verify
from traindoctor.cli.patched_script import patched
from traindoctor.errors import TraindoctorError
from traindoctor.report.json import SCHEMA
from warm_python import warm_run

SICK = zero_grad["in the loop"].text
FIX = """\
--- a/train.py
+++ b/train.py
@@ -56,2 +56,3 @@
     loss = F.cross_entropy(logits.view(-1, V), y.view(-1))
+    optimizer.zero_grad()
     loss.backward()
"""


def run(folder: Path, *options: str) -> tuple[str, str]:
    command = ["-m", "traindoctor", "run", "--budget", "50", "--after", "5", *options]
    done = warm_run(command, folder=folder)
    assert done.returncode == 0, done.stderr
    return done.stdout, done.stderr


def test_from_the_verdict_to_the_fix_that_holds(tmp_path: Path) -> None:
    """The script has a neighbour that it imports and a file beside it; the recorded run without the change is taken."""
    text = f"from pathlib import Path\nimport beside\nassert (Path(__file__).parent / 'data.txt').read_text() == 'd'\n{SICK}"
    (tmp_path / "train.py").write_text(text)
    (tmp_path / "beside.py").write_text("")
    (tmp_path / "data.txt").write_text("d")
    out, err = run(tmp_path, "--out", "runs/sick", "--json", "-", "train.py", "--its", "own")
    sick = json.loads(out)
    assert "step 39 loss" in err
    assert sick["causes"][0]["cause"] == "missing-zero-grad"
    assert sick["reproduce"] == "traindoctor run train.py --its own"
    saved = tmp_path / "runs" / "sick" / "fix.diff"
    assert saved.read_text() == sick["causes"][0]["fix"]
    assert "  diff       line 60:\n" in err
    assert "\n             +    optimizer.zero_grad()\n" in err
    again = "traindoctor run --verify-fix runs/sick/fix.diff train.py --its own"
    assert f" {again} " in " ".join(err.replace("\\\n", "").split())

    options = ["--verify-fix", "runs/sick/fix.diff", "--out", "runs/fixed", "--json", "-"]
    out, err = run(tmp_path, *options, "train.py", "--its", "own")
    fixed = json.loads(out)
    jsonschema.validate(fixed, json.loads(SCHEMA.read_text()))
    verified = fixed["verified"]
    assert verified["against"] == str(tmp_path / "runs" / "sick")
    assert (verified["cause"], verified["holds"]) == ("missing-zero-grad", True)
    assert (verified["before"], verified["after"]) == ("broken (confirmed)", "holds")
    assert verified["loss"]["gained"] > 0.1
    assert "verified   the law now holds" in err
    assert fixed["reproduce"] == again
    assert all(cause["fix"] is None for cause in fixed["causes"])
    # Nothing of the user's is changed, and of the copy only the script is left.
    assert (tmp_path / "train.py").read_text() == text
    left = tmp_path / "runs" / "fixed" / "patched"
    assert sorted(file.name for file in left.iterdir()) == ["fix.diff", "train.py"]
    assert not (tmp_path / "runs" / "fixed" / verify.BEFORE).exists()


@pytest.mark.slow
def test_a_script_without_a_seed_runs_again_from_the_same_start(tmp_path: Path) -> None:
    unseeded = SICK.replace(
        "torch.manual_seed(0)", "import random\ntorch.manual_seed(random.getrandbits(32))"
    )
    (tmp_path / "train.py").write_text(unseeded)
    (tmp_path / "fix.diff").write_text(FIX.replace("@@ -56,2 +56,3 @@", "@@ -57,2 +57,3 @@"))
    run(tmp_path, "--out", "runs/sick", "--quiet", "train.py")
    out, err = run(
        tmp_path, "--verify-fix", "fix.diff", "--out", "runs/b", "--json", "-", "train.py"
    )
    verified = json.loads(out)["verified"]
    assert verified["against"] == str(tmp_path / "runs" / "b" / verify.BEFORE)
    assert "no equal run of" in err
    assert err.count("step 0 loss") == 2
    first = [line for line in err.splitlines() if line.startswith("step 0 loss")]
    assert first[0] == first[1]
    assert (verified["holds"], verified["loss"]["remark"]) == (True, None)


def test_a_patch_that_cures_nothing_is_told_so(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SICK)
    (tmp_path / "fix.diff").write_text(FIX.replace("optimizer.zero_grad()", "assert optimizer"))
    run(tmp_path, "--out", "runs/sick", "--quiet", "--after", "0", "train.py")
    out, _ = run(tmp_path, "--verify-fix", "fix.diff", "--out", "runs/b", "--json", "-", "train.py")
    found = json.loads(out)
    assert found["verdict"] == "sick"
    assert found["verified"]["holds"] is False
    assert found["verified"]["loss"]["gained"] == 0
    assert "it is still broken (confirmed)" in found["verified"]["said"]


@pytest.mark.parametrize(
    ("patch", "said"),
    [
        (None, "there is no patch"),
        ("nonsense", "is not a unified diff"),
        (FIX.replace("loss.backward", "gone.backward"), "does not apply to train.py"),
        (FIX.replace("train.py", "model.py"), "changes model.py, not train.py"),
        (FIX.replace("train.py", "../train.py"), "names ../train.py, which leads elsewhere"),
        (
            FIX.replace("a/train.py", "/etc/train.py").replace("b/train.py", "/etc/train.py"),
            "leads elsewhere",
        ),
        (FIX.replace("zero_grad()", "zero_grad("), "is not valid Python"),
    ],
)
def test_a_patch_that_cannot_be_tried_is_one_sentence_before_anything_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, patch: str | None, said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(SICK)
    if patch is not None:
        (tmp_path / "p.diff").write_text(patch)
    command = ["run", "--verify-fix", "p.diff", "train.py"]
    done = CliRunner().invoke(cli, command, standalone_mode=False)
    assert isinstance(done.exception, TraindoctorError)
    assert said in str(done.exception)
    assert "\n" not in str(done.exception)
    assert not (tmp_path / "runs").exists()


def test_modules_folders_and_ranks_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "p.diff").write_text(FIX)
    (tmp_path / "__main__.py").write_text("")
    for target, said in ((["-m", "train"], "instead of -m"), (["."], "not the folder")):
        command = ["run", "--verify-fix", "p.diff", *target]
        done = CliRunner().invoke(cli, command, standalone_mode=False)
        assert said in str(done.exception)
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    (tmp_path / "train.py").write_text(SICK)
    command = ["run", "--verify-fix", "p.diff", "train.py"]
    done = CliRunner().invoke(cli, command, standalone_mode=False)
    assert "without torchrun" in str(done.exception)


def test_a_copy_lies_among_links_and_keeps_its_line_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_bytes(SICK.replace("\n", "\r\n").encode())
    (tmp_path / "package").mkdir()
    (tmp_path / "p.diff").write_text(FIX)
    copy = patched("train.py", "p.diff").lay_out(tmp_path / "run")
    assert copy.read_bytes().count(b"\r\n") == SICK.count("\n") + 1
    assert b"optimizer.zero_grad()\r\n" in copy.read_bytes()
    assert (copy.parent / "package").resolve() == tmp_path / "package"
    assert not copy.is_symlink()


def test_the_same_start_is_that_of_python_and_numpy() -> None:
    import numpy

    drawn = []
    state, numpys = random.getstate(), numpy.random.get_state()
    try:
        for _ in range(2):
            verify.same_start()
            drawn.append((random.random(), numpy.random.rand()))
    finally:
        random.setstate(state)
        numpy.random.set_state(numpys)
    assert drawn[0] == drawn[1]


NOISY = """\
print("module")
import os
os.system("echo child")

def case():
    import torch
    print("case")
    return (lambda x: (x**3).sum()), [torch.ones(2)]
"""


def test_gradcheck_leaves_standard_output_to_the_json(tmp_path: Path) -> None:
    (tmp_path / "case.py").write_text(NOISY)
    command = ["-m", "traindoctor", "gradcheck", "--json", "-", "case.py:case"]
    done = warm_run(command, folder=tmp_path)
    assert (done.returncode, json.loads(done.stdout)["outcome"]) == (0, "pass")
    assert set(done.stderr.split()) >= {"module", "child", "case"}


def test_check_leaves_standard_output_to_the_json(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(changed())
    command = ["-m", "traindoctor", "check", "--json", "-", "--seconds", "1", "train.py"]
    done = warm_run(command, folder=tmp_path)
    assert json.loads(done.stdout)["steps"] > 0
    assert "step 0 loss" in done.stderr
