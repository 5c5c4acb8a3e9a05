"""The case study of the field reports: its claims are measured here, its verdicts in the slow tests."""

from __future__ import annotations

import importlib.util
import json
import math
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

from warm_python import warm_run

ROOT = Path(__file__).parents[1]
STUDY = ROOT / "examples" / "case_study"


def module(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"case_study_{name}", STUDY / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


def test_report_c_tested_its_test_not_its_kernel() -> None:
    study = module("finite_differences")
    single = study.relative_errors(torch.float32, study.STEP)
    double = study.relative_errors(torch.float64, study.STEP)
    assert int((single > study.TOLERANCE).sum()) == study.CHECKS
    assert float(single.mean()) > 0.4
    assert int((double > study.TOLERANCE).sum()) == 0


def test_report_c_blamed_a_sum_that_is_right_to_seven_digits() -> None:
    assert module("finite_differences").summation_error() < 1e-6


def test_the_hand_written_kernel_is_right_where_it_divides() -> None:
    study = module("program")
    logits = torch.randn(6, 9, dtype=torch.float64, requires_grad=True)
    targets = torch.randint(9, (6,))
    for kahan in (True, False):
        loss = study.FusedCrossEntropy.apply(logits, targets, True, kahan)
        (given,) = torch.autograd.grad(loss, logits)
        reference = torch.nn.functional.cross_entropy(logits, targets)
        (right,) = torch.autograd.grad(reference, logits)
        torch.testing.assert_close(loss, reference)
        torch.testing.assert_close(given, right)


def test_the_kernel_of_report_a_is_wrong_by_the_number_of_rows() -> None:
    study = module("program")
    logits = torch.randn(6, 9, dtype=torch.float64, requires_grad=True)
    targets = torch.randint(9, (6,))
    loss = study.FusedCrossEntropy.apply(logits, targets, False, False)
    (given,) = torch.autograd.grad(loss, logits)
    (right,) = torch.autograd.grad(torch.nn.functional.cross_entropy(logits, targets), logits)
    torch.testing.assert_close(given, 6 * right)


def test_report_d_prints_ln_v(tmp_path: Path) -> None:
    output = warm_run([str(STUDY / "report_d.py"), "--steps", "3"], folder=tmp_path).stdout
    assert f"cross-entropy {math.log(10_000):.4f}" in output


VERDICTS = [
    ("program.py", "sound", None),
    ("program.py", "plain-sum", None),
    ("program.py", "kernel", "backward-incorrect"),
    ("program.py", "targets", "targets-misaligned"),
    ("program.py", "rate", "lr-too-high"),
    ("report_d.py", "", "loss-gradient-mismatch"),
    ("report_d.py", "--sound", None),
]


@pytest.mark.slow
@pytest.mark.parametrize(("script", "variant", "cause"), VERDICTS)
def test_each_variant_gets_its_verdict(
    script: str, variant: str, cause: str | None, tmp_path: Path
) -> None:
    arguments = ["--variant", variant] if script == "program.py" else variant.split()
    command = [
        *(
            sys.executable,
            "-m",
            "traindoctor",
            "run",
            "--quiet",
            "--json",
            str(tmp_path / "v.json"),
        ),
        *("--out", str(tmp_path / "run"), "--after", "120", str(STUDY / script), *arguments),
    ]
    subprocess.run(
        command, check=True, capture_output=True, env={**os.environ, "OMP_NUM_THREADS": "1"}
    )
    said = json.loads((tmp_path / "v.json").read_text())
    if cause is None:
        assert said["verdict"] == "healthy", said["causes"]
    else:
        assert said["verdict"] == "sick"
        assert said["causes"][0]["cause"] == cause
