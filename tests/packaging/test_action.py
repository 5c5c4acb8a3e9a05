"""The GitHub Action: its YAML is whole, and its own script fails on a sick program and passes on a sound one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

yaml = pytest.importorskip("yaml")

ROOT = Path(__file__).parents[2]
SICK = ROOT / "examples" / "causes" / "causal_mask_leak.py"


def action() -> dict[str, Any]:
    return yaml.safe_load((ROOT / "action.yml").read_text(encoding="utf-8"))


def test_the_example_workflow_gives_inputs_that_the_action_has() -> None:
    text = (ROOT / "examples" / "github" / "traindoctor.yml").read_text(encoding="utf-8")
    workflow = yaml.safe_load(text)
    steps = workflow["jobs"]["traindoctor"]["steps"]
    used = next(step for step in steps if "traindoctor@" in step.get("uses", ""))
    inputs = action()["inputs"]
    assert set(used["with"]) <= set(inputs)
    assert {name for name, one in inputs.items() if one.get("required")} <= set(used["with"])


def test_inputs_reach_the_script_as_variables_only() -> None:
    for step in action()["runs"]["steps"]:
        assert "${{" not in step["run"]
        assert step["shell"] == "bash"


def examine(folder: Path, script: str, **environment: str) -> tuple[int, str, str]:
    """Runs the action's second step as a runner would: exit status, outputs, summary."""
    step = action()["runs"]["steps"][1]
    given = {name: action()["inputs"][name.lower()].get("default", "") for name in step["env"]}
    files = {name: str(folder / name) for name in ("GITHUB_OUTPUT", "GITHUB_STEP_SUMMARY")}
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    variables = {**given, "SCRIPT": script, **environment, **files, "PATH": path}
    done = subprocess.run(
        ["bash", "-e", "-o", "pipefail", "-c", step["run"]],
        cwd=folder,
        env=os.environ | variables | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    written = [Path(file) for file in files.values()]
    outputs, summary = (file.read_text() if file.exists() else "" for file in written)
    return done.returncode, outputs, summary


def sound_script(folder: Path) -> str:
    text = SICK.read_text(encoding="utf-8").replace(".triu(2)", ".triu(1)")
    (folder / "sound.py").write_text(text, encoding="utf-8")
    return "sound.py"


def test_a_script_that_is_not_there_fails(tmp_path: Path) -> None:
    status, _, summary = examine(tmp_path, "nowhere.py")
    assert status == 2
    assert "nowhere.py" in summary


@pytest.mark.slow
def test_check_fails_a_sick_script(tmp_path: Path) -> None:
    status, outputs, summary = examine(tmp_path, str(SICK), OPTIONS="--seconds 20")
    assert status == 1
    assert outputs == "verdict=sick\ncause=causal-mask-leak\n"
    assert "causal-mask-leak" in summary


@pytest.mark.slow
def test_run_is_strict(tmp_path: Path) -> None:
    status, outputs, _ = examine(tmp_path, str(SICK), COMMAND="run", OPTIONS="--after 1")
    assert status == 1
    assert "verdict=sick" in outputs


@pytest.mark.slow
def test_a_sound_script_passes(tmp_path: Path) -> None:
    """Healthy, or inconclusive where the machine is slow: neither fails."""
    status, outputs, _ = examine(tmp_path, sound_script(tmp_path))
    assert status == 0
    assert "verdict=sick" not in outputs
