"""Torch's private parts are used in one file, and where a release drops one that is said in one sentence."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "traindoctor"
# Kernels are launched by hand, without torch's own wrappers around streams and devices.
FREE = ("ground/torch_private.py", "kernels/")


def private_uses(file: Path) -> list[str]:
    found = []
    for node in ast.walk(ast.parse(file.read_text())):
        name = ""
        if isinstance(node, ast.Attribute):
            name = ast.unparse(node)
            name = name if name.replace(".", "").isidentifier() else ""
        elif isinstance(node, ast.ImportFrom):
            name = ".".join([node.module or "", *(alias.name for alias in node.names)])
        elif isinstance(node, ast.Import):
            name = " ".join(alias.name for alias in node.names)
        parts = name.split(".")
        if parts[0] == "torch" and any(p.startswith("_") and p[:2] != "__" for p in parts):
            found.append(f"{file.relative_to(SOURCE)}:{node.lineno}: {name}")
    return found


def test_nothing_else_reaches_into_torch() -> None:
    files = [
        f for f in SOURCE.rglob("*.py") if not f.relative_to(SOURCE).as_posix().startswith(FREE)
    ]
    assert len(files) > 100
    assert [use for file in files for use in private_uses(file)] == []


@pytest.mark.parametrize("name", ["torch._foreach_norm", "torch._C._is_tracing"])
def test_a_part_that_a_release_dropped_is_named_in_one_sentence(name: str) -> None:
    program = (
        f"import torch\ndel {name}\n"
        "from traindoctor.errors import TraindoctorError\n"
        "try:\n    import traindoctor.ground.torch_private\n"
        "except TraindoctorError as error:\n    print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert name.rpartition(".")[2] in done.stdout
    assert "install" in done.stdout
    assert done.stdout.count("\n") == 1


def test_a_script_runs_unwatched_where_one_is_missing(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import torch\n"
        "model = torch.nn.Linear(2, 2)\n"
        "optimizer = torch.optim.SGD(model.parameters(), 0.1)\n"
        "model(torch.ones(1, 2)).sum().backward()\noptimizer.step()\nprint('done')\n"
    )
    broken = tmp_path / "broken"
    broken.mkdir()
    # As a release without the part: gone when torch has been imported, before anything of ours is.
    (broken / "sitecustomize.py").write_text("import torch\ndel torch._foreach_norm\n")
    command = [sys.executable, "-m", "traindoctor", "run", "--out", str(tmp_path / "run")]
    done = subprocess.run(
        [*command, str(script)],
        capture_output=True,
        text=True,
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": f"{broken}:{SOURCE.parent}"},
    )
    assert done.stdout == "done\n"
    assert done.returncode == 0, done.stderr
    assert "_foreach_norm" in done.stderr
    assert "Traceback" not in done.stderr
