"""traindoctor gradcheck module:function"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

from traindoctor.cli.gradcheck import command
from traindoctor.errors import TraindoctorError

EXAMPLE = Path(__file__).parents[2] / "examples" / "gradcheck_autograd_function.py"


@pytest.mark.parametrize(
    ("case", "word", "status"), [("right", "pass", 0), ("wrong", "constant factor 6", 1)]
)
def test_the_example_is_judged(case: str, word: str, status: int) -> None:
    result = CliRunner().invoke(command, [f"{EXAMPLE}:{case}"], standalone_mode=False)
    assert result.exception is None, result.exception
    assert word in result.output
    assert result.return_value == status


@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")
@pytest.mark.parametrize(
    ("case", "word", "status"),
    [("right", "pass", 0), ("last_block_forgotten", "zero from index 1024 on", 1)],
)
def test_a_compiled_c_library_is_judged(case: str, word: str, status: int) -> None:
    example = EXAMPLE.with_name("gradcheck_ctypes.py")
    result = CliRunner().invoke(command, [f"{example}:{case}"], standalone_mode=False)
    assert result.exception is None, result.exception
    assert word in result.output
    assert result.return_value == status


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("nothing", "expected MODULE:FUNCTION"),
        ("no_such_module_here:f", "there is no module"),
        ("nowhere.py:f", "there is no file"),
        (f"{EXAMPLE}:neither", "has no function"),
    ],
)
def test_wrong_use_is_told_in_one_sentence(target: str, message: str) -> None:
    with pytest.raises(TraindoctorError, match=message):
        CliRunner().invoke(command, [target], standalone_mode=False, catch_exceptions=False)
