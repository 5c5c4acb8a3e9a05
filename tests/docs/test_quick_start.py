"""The quick start's scripts and the finds in the wild run as their pages say, with the verdict that is named there."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "quick-start.md"
RUN = re.compile(
    r"^\$ (.*traindoctor run (\S+))\n\.\.\.\ntraindoctor: SICK, (\S+) \(", re.MULTILINE
)
COMMANDS = [match.groups() for match in RUN.finditer(PAGE.read_text(encoding="utf-8"))]
# The frameworks that a script needs beside torch.
NEEDS = {
    "hf_trainer": ["transformers", "accelerate"],
    "trl_sft": ["trl"],
    "accelerate_loop": ["accelerate"],
    "lightning_module": ["lightning"],
    "lightning_demo": ["lightning"],
}


def run(folder: Path, command: str, *options: str) -> dict[str, Any]:
    """The verdict of a command as a page has it, made with this Python."""
    name = Path(command.split()[-1]).stem
    missing = [one for one in NEEDS.get(name, []) if importlib.util.find_spec(one) is None]
    if missing:
        pytest.skip(f"{', '.join(missing)} is not installed")
    words = command.split()
    launcher = words[: words.index("-m")] if "-m" in words else []
    if launcher:
        launcher = [sys.executable, "-m", "torch.distributed.run", *launcher[1:]]
    program = [*launcher] if launcher else [sys.executable]
    program += ["-m", "traindoctor", "run", "--out", "run", "--json", "verdict.json", *options]
    done = subprocess.run(
        [*program, str(ROOT / words[-1])],
        cwd=folder,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return json.loads((folder / "verdict.json").read_text(encoding="utf-8"))


def test_the_page_has_a_command_for_every_script_with_a_fault() -> None:
    scripts = {file.stem for file in (ROOT / "examples" / "quick_start").glob("*.py")}
    assert {Path(script).stem for _, script, _ in COMMANDS} == scripts - {"notebook"}


@pytest.mark.slow
@pytest.mark.parametrize(("command", "script", "cause"), COMMANDS, ids=[c[2] for c in COMMANDS])
def test_the_quick_start_says_what_comes(
    tmp_path: Path, command: str, script: str, cause: str
) -> None:
    verdict = run(tmp_path, command, "--budget", "20", "--after", "20")
    assert (verdict["verdict"], verdict["causes"][0]["cause"]) == ("sick", cause)
    assert verdict["causes"][0]["status"] == "confirmed"


@pytest.mark.slow
def test_the_notebook_cell_shows_a_report(tmp_path: Path) -> None:
    cell = (ROOT / "examples" / "quick_start" / "notebook.py").read_text(encoding="utf-8")
    cell = cell.replace("doctor.report()", "print(doctor.report()._repr_html_()[:7])")
    done = subprocess.run(
        [sys.executable, "-c", cell],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT / "examples" / "quick_start")},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-2:] == ["sick missing-zero-grad", "<iframe"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "cause"),
    [("float_mask", "causal-mask-leak"), ("lightning_demo", "targets-misaligned")],
)
def test_finds_in_the_wild_are_named(tmp_path: Path, script: str, cause: str) -> None:
    verdict = run(tmp_path, f"traindoctor run examples/wild/{script}.py", "--budget", "20")
    assert verdict["causes"][0]["cause"] == cause


@pytest.mark.slow
def test_a_boolean_mask_masks() -> None:
    """The fix that the page names: earlier scores do not move at all."""
    command = [sys.executable, str(ROOT / "examples" / "wild" / "float_mask.py")]
    printed = [
        subprocess.run([*command, *more], capture_output=True, text=True, check=True).stdout
        for more in ([], ["bool"])
    ]
    published, fixed = (float(text.splitlines()[0].split()[-1]) for text in printed)
    assert published > 1e-3
    assert fixed == 0.0
