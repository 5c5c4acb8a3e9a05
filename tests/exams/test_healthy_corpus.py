"""Every exam and every module alone, on all healthy scripts of the corpus: nothing is found wrong."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

CORPUS = Path(os.environ.get("TRAINDOCTOR_CORPUS", Path(__file__).parents[2] / "corpus"))
TRUTH = json.loads((CORPUS / "truth.json").read_text())
HEALTHY = [CORPUS / "cases" / f"{name}.py" for name, one in TRUTH.items() if one["cause"] is None]
SCRIPTS = [*HEALTHY, *sorted(CORPUS.glob("twins/*.py"))]


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_nothing_is_wrong_with_a_healthy_script(tmp_path: Path, script: Path) -> None:
    verdict = tmp_path / "verdict.json"
    command = [sys.executable, "-m", "traindoctor", "check", "--seconds", "60", "--each-module"]
    done = subprocess.run(
        [*command, "--json", str(verdict), str(script)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode in (0, 3), done.stderr
    said = json.loads(verdict.read_text())
    assert said["verdict"] in ("healthy", "inconclusive")
    rows = {row["exam"]: row for row in said["exams"]}
    assert not [row for row in said["exams"] if row["verdict"] in ("look at this", "failed")]
    # Tested, or the reason why nothing of the step can be.
    assert rows["layers_alone"]["verdict"] in ("ok", "-", "n/a"), rows["layers_alone"]
