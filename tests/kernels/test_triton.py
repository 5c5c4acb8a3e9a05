"""The Triton kernels: in Triton's interpreter everywhere, and on the GPU itself where there is one."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

CASES = Path(__file__).with_name("interpreted.py")
pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None, reason="triton is not installed"
)


def run_cases(**environment: str) -> None:
    finished = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            "-p",
            "no:xdist",
            str(CASES),
        ],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=1400,
    )
    assert finished.returncode == 0, finished.stdout[-6000:] + finished.stderr[-2000:]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU: the kernels run on it below")
def test_kernels_in_the_interpreter() -> None:
    run_cases(TRITON_INTERPRET="1", CUDA_VISIBLE_DEVICES="")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_kernels_on_the_gpu() -> None:
    run_cases(TRITON_INTERPRET="0")
