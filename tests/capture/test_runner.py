"""A script runs as Python would run it: arguments, path, exit status, tracebacks, signals."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from scripts_of_capture import run_python, watched

ABOUT_ITSELF = """
import os, sys
import beside
print(__name__, __file__, __package__, __spec__, sys.argv, beside.HERE, os.getcwd() == sys.path[0])
print(sorted(name for name in globals() if not name.startswith("__")))
print(__import__("__main__").__dict__ is globals(), "torch" in sys.modules, "numpy" in sys.modules)
if len(sys.argv) > 2:
    sys.exit(sys.argv[2] if sys.argv[2] == "words" else int(sys.argv[2]))
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "script.py").write_text(ABOUT_ITSELF)
    (tmp_path / "beside.py").write_text("HERE = True")
    return tmp_path


@pytest.mark.parametrize(
    "arguments",
    [
        ("--budget=7", "3"),
        *(pytest.param(a, marks=pytest.mark.slow) for a in (("--out", "0"), ("-m", "words"))),
    ],
)
def test_a_script_cannot_tell_the_difference(folder: Path, arguments: tuple[str, ...]) -> None:
    bare = run_python(folder, "script.py", *arguments)
    ours = watched(folder, "script.py", *arguments)
    assert ours.out == bare.out
    assert ours.status == bare.status
    assert bare.err in ours.err


def test_a_module_cannot_either(folder: Path) -> None:
    package = folder / "package"
    package.mkdir()
    (package / "__init__.py").write_text("import sys; print('while imported', sys.argv)")
    (package / "__main__.py").write_text(
        "import sys; from package import job; print(__name__, __package__, sys.argv)"
    )
    (package / "job.py").write_text(
        "import sys; print(__name__, __spec__.name, sys.argv[1:], sys.path[0])"
    )
    for name in ("package", "package.job"):
        bare = run_python(folder, "-m", name, "--flag", "x")
        ours = run_python(folder, "-m", "traindoctor", "run", "-m", name, "--flag", "x")
        assert (ours.out, ours.status) == (bare.out, bare.status)
    (package / "__init__.py").write_text("import nothing_of_that_name")
    broken = run_python(folder, "-m", "traindoctor", "run", "-m", "package.job")
    assert broken.status == run_python(folder, "-m", "package.job").status == 1
    assert "No module named 'nothing_of_that_name'" in broken.err


def test_tracebacks_are_the_scripts_own(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(
        "import torch\n"
        "class M(torch.nn.Module):\n"
        "    def forward(self, x):\n"
        "        raise ValueError('mine')\n"
        "try:\n"
        "    M()(1)\n"
        "except ValueError as error:\n"
        "    raise RuntimeError('outer') from error\n"
    )
    bare, ours = run_python(tmp_path, "script.py"), watched(tmp_path, "script.py")
    assert bare.status == ours.status == 1
    assert ours.err.startswith(bare.err)
    assert "capture" not in ours.err.partition("RuntimeError: outer")[0]


def test_ctrl_c_ends_it_as_python_does(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(
        "import time\nprint('ready', flush=True)\n"
        "try:\n    time.sleep(60)\nfinally:\n    print('cleaned', flush=True)\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-m", "traindoctor", "run", "--quiet", "script.py"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # A test run in the background has Ctrl-C switched off, and its children inherit that.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=600)
    assert out == "cleaned\n"
    assert process.returncode == -signal.SIGINT
    assert err.rstrip().endswith("KeyboardInterrupt")


def test_torch_and_numpy_are_not_imported_before_the_script_does(tmp_path: Path) -> None:
    """A script that sets its threads in os.environ first gets them."""
    (tmp_path / "script.py").write_text(
        "import os; os.environ['OMP_NUM_THREADS'] = '1'\n"
        "import torch; print(torch.get_num_threads())\n"
    )
    environment = {"OMP_NUM_THREADS": "2"}
    bare = run_python(tmp_path, "script.py", environment=environment)
    ours = run_python(tmp_path, "-m", "traindoctor", "run", "script.py", environment=environment)
    assert bare.out == ours.out == "1\n"


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ("missing.py", "there is no script 'missing.py'"),
        ("notes.txt", "is not valid Python"),
        ("zeros.bin", "is not valid Python"),
    ],
)
def test_what_cannot_run_is_told_in_a_sentence(tmp_path: Path, target: str, words: str) -> None:
    (tmp_path / "notes.txt").write_text("Dear diary, today I trained.")
    (tmp_path / "zeros.bin").write_bytes(b"\0" * 20)
    ended = run_python(tmp_path, "-m", "traindoctor", "run", target)
    assert ended.status == 2
    assert words in ended.err
    assert "Traceback" not in ended.err
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("code", ["print('hello')", "import torch; print(torch.ones(2).sum())"])
def test_a_script_that_trains_nothing_is_told_so(tmp_path: Path, code: str) -> None:
    (tmp_path / "script.py").write_text(code)
    ended = watched(tmp_path, "script.py")
    assert ended.status == 0
    assert "nothing was trained" in ended.err


def test_children_run_the_hidden_sitecustomize_too(tmp_path: Path) -> None:
    """The environment's own start-up file is chained, not replaced."""
    hidden = tmp_path / "site"
    hidden.mkdir()
    (hidden / "sitecustomize.py").write_text("import builtins; builtins.CHAINED = True")
    (tmp_path / "script.py").write_text(
        "import subprocess, sys\n"
        "subprocess.run([sys.executable, '-c', 'print(CHAINED)'], check=True)\n"
    )
    ours = run_python(
        tmp_path, "-m", "traindoctor", "run", "script.py", environment={"PYTHONPATH": str(hidden)}
    )
    assert ours.out == "True\n"
    assert "sitecustomize" not in ours.err
    assert os.fspath(hidden)
