"""Code of the script's is called a second time only where reading it shows nothing that would happen twice."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

from traindoctor.ground import side_effects

HEAD = """
import ctypes
import math
import numpy as np
import torch
from torch import nn

calls = []
counts = {}
total = 0
SCALE = 0.5
SHAPE = (1, 2)

def halve(x):
    return x * SCALE

library = ctypes.CDLL(None)

def through(x):
    return x * library.abs(-2)

class Box:
    value = 0

box = Box()
"""

HARMLESS = {
    "torch alone": "out = x.exp()\n        ctx.save_for_backward(out)\n        return out",
    "its own context": "ctx.size = x.shape[0]\n        ctx.extra = [1]\n        return x / ctx.size",
    "constants and helpers": "return halve(x) * math.pi + SHAPE[0]",
    "NumPy": "return torch.as_tensor(np.tanh(x.detach().numpy()))",
    "a closure of its own": "parts = [y for y in x]\n        return torch.stack(parts)",
}
HARMFUL = {
    "a list outside": "calls.append(1)\n        return x * 2",
    "a dict outside": "counts['n'] = counts.get('n', 0) + 1\n        return x * 2",
    "a global": "global total\n        total += 1\n        return x * 2",
    "an object outside": "box.value += 1\n        return x * 2",
    "print": "print('forward')\n        return x * 2",
    "a file": "open('log.txt', 'a').write('x')\n        return x * 2",
    "a helper that counts": "return count(x)",
}


def module(folder: Path, body: str) -> ModuleType:
    file = folder / "script.py"
    file.write_text(
        HEAD
        + "\ndef count(x):\n    calls.append(1)\n    return x\n"
        + "\nclass Mine(torch.autograd.Function):\n    @staticmethod\n    def forward(ctx, x):\n        "
        + body
        + "\n    @staticmethod\n    def backward(ctx, slope):\n        return slope * SCALE\n"
        + "\nclass Net(nn.Module):\n    def forward(ctx, x):\n        "
        + body
        + "\n"
    )
    spec = importlib.util.spec_from_file_location("script_of_side_effects", file)
    assert spec is not None
    assert spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = made
    spec.loader.exec_module(made)
    return made


@pytest.mark.parametrize("name", HARMLESS)
def test_what_shows_nowhere_may_be_called_again(name: str, tmp_path: Path) -> None:
    made = module(tmp_path, HARMLESS[name])
    assert side_effects.of_function(made.Mine) is None
    assert side_effects.of_modules([made.Net()]) is None


@pytest.mark.parametrize("name", HARMFUL)
def test_what_would_happen_twice_is_told(name: str, tmp_path: Path) -> None:
    made = module(tmp_path, HARMFUL[name])
    assert side_effects.of_function(made.Mine)
    assert side_effects.of_modules([made.Net()])


def test_objects_of_the_script_may_keep_what_is_written_to_them(tmp_path: Path) -> None:
    made = module(tmp_path, HARMLESS["torch alone"])
    plain = (torch.ones(2), 3, "sum", None, {"scale": 0.5, "sizes": [1, 2]})
    assert side_effects.of_arguments((plain, {"x": torch.float32})) is None
    assert "Box" in str(side_effects.of_arguments((torch.ones(2), made.box)))
    assert "Box" in str(side_effects.of_arguments(((), {"workspace": [made.box]})))


@pytest.mark.parametrize(
    ("body", "by_address"),
    [
        ("return torch.as_tensor(np.tanh(x.detach().numpy()))", False),
        ("ctypes.memmove(x.data_ptr(), x.data_ptr(), 4)\n        return x * 2", True),
        ("return through(x)", True),
        ("return halve(x)", False),
    ],
)
def test_code_that_calls_c_by_addresses_is_known(
    body: str, by_address: bool, tmp_path: Path
) -> None:
    made = module(tmp_path, body)
    assert side_effects.uses_addresses(made.Mine) is by_address
