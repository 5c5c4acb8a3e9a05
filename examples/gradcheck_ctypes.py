"""Test a C library through ctypes and NumPy: `python examples/gradcheck_ctypes.py` (needs a C compiler, `cc`).

The same adapter serves CUDA and Go libraries: forward and backward take and give NumPy arrays.
"""

from __future__ import annotations

import ctypes
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch

from traindoctor.exams.adapter import Adapter
from traindoctor.exams.gradcheck import gradcheck

SOURCE = r"""
#include <math.h>
void gelu_forward(const double *x, double *y, long n) {
    for (long i = 0; i < n; i++) y[i] = 0.5 * x[i] * (1 + erf(x[i] / sqrt(2.0)));
}
/* `cut`: entries from this index on are forgotten, as a kernel with a wrong last block does. */
void gelu_backward(const double *dy, const double *x, double *dx, long n, long cut) {
    for (long i = 0; i < n; i++) {
        double phi = exp(-0.5 * x[i] * x[i]) / sqrt(2 * 3.14159265358979323846);
        double d = 0.5 * (1 + erf(x[i] / sqrt(2.0))) + x[i] * phi;
        dx[i] = i < cut ? dy[i] * d : 0;
    }
}
"""


def compile_library() -> Any:
    folder = Path(tempfile.mkdtemp())
    (folder / "gelu.c").write_text(SOURCE)
    target = folder / "gelu.so"
    subprocess.run(
        ["cc", "-O2", "-shared", "-fPIC", str(folder / "gelu.c"), "-o", str(target), "-lm"],
        check=True,
    )
    return ctypes.CDLL(str(target))


def pointer(array: np.ndarray) -> Any:
    return array.ctypes.data_as(ctypes.POINTER(ctypes.c_double))


def adapter(library: Any, cut: int) -> Adapter:
    def forward(x: np.ndarray) -> np.ndarray:
        x = np.ascontiguousarray(x, dtype=np.float64)
        y = np.empty_like(x)
        library.gelu_forward(pointer(x), pointer(y), ctypes.c_long(x.size))
        return y

    def backward(dy: np.ndarray, x: np.ndarray) -> np.ndarray:
        x, dy = (np.ascontiguousarray(a, dtype=np.float64) for a in (x, dy))
        dx = np.empty_like(x)
        library.gelu_backward(
            pointer(dy), pointer(x), pointer(dx), ctypes.c_long(x.size), ctypes.c_long(cut)
        )
        return dx

    return Adapter(forward, backward)


def right() -> tuple[Adapter, torch.Tensor]:
    """`traindoctor gradcheck examples/gradcheck_ctypes.py:right`"""
    return adapter(compile_library(), cut=1500), sample()


def last_block_forgotten() -> tuple[Adapter, torch.Tensor]:
    """`traindoctor gradcheck examples/gradcheck_ctypes.py:last_block_forgotten`"""
    return adapter(compile_library(), cut=1024), sample()


def sample() -> torch.Tensor:
    return torch.randn(1500, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def main() -> None:
    print("right:", gradcheck(*right()))
    print("last block forgotten:", gradcheck(*last_block_forgotten()))


if __name__ == "__main__":
    main()
