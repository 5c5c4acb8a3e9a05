"""Both losses inside a model that torch.compile turns into code: one graph, the same numbers."""

from __future__ import annotations

import shutil

import pytest
import torch
from torch import Tensor

from traindoctor import cross_entropy, linear_cross_entropy

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        DEVICE == "cpu" and shutil.which("g++") is None, reason="inductor needs a C++ compiler"
    ),
    # inductor's advice on float32 products
    pytest.mark.filterwarnings("ignore:TensorFloat32 tensor cores"),
]
# CPUs without bfloat16 products warn of each.
DTYPES = [torch.float32] if DEVICE == "cpu" else [torch.float32, torch.bfloat16]


class Model(torch.nn.Module):
    def __init__(self, fused: bool) -> None:
        super().__init__()
        self.body = torch.nn.Linear(16, 16)
        self.head = torch.nn.Linear(16, 300)
        self.fused = fused

    def forward(self, x: Tensor, targets: Tensor) -> Tensor:
        hidden = torch.nn.functional.gelu(self.body(x))
        if self.fused:
            return linear_cross_entropy(hidden, self.head.weight, targets, self.head.bias)
        return cross_entropy(self.head(hidden), targets)


def gradients(step, model: Model, *inputs: Tensor) -> list[Tensor]:
    model.zero_grad()
    loss = step(*inputs)
    loss.backward()
    return [loss.detach(), *(p.grad.clone() for p in model.parameters())]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("fused", [False, True], ids=["from logits", "with the linear layer"])
def test_inductor_gives_the_same_in_one_graph(fused: bool, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    torch._dynamo.reset()
    model = Model(fused).to(DEVICE, dtype)
    x = torch.randn(2, 9, 16, device=DEVICE, dtype=dtype)
    targets = torch.randint(300, (2, 9), device=DEVICE)
    targets[0, :4] = -100
    compiled = torch.compile(model, fullgraph=True)
    found = gradients(compiled, model, x, targets)
    true = gradients(model, model, x, targets)
    tolerance = {"rtol": 1e-4, "atol": 1e-6} if dtype == torch.float32 else {}
    torch.testing.assert_close(found, true, **tolerance)
    # a second batch, of another length: compiled again for any length, and still right
    longer = torch.randn(2, 13, 16, device=DEVICE, dtype=dtype)
    targets = torch.randint(300, (2, 13), device=DEVICE)
    found = gradients(compiled, model, longer, targets)
    torch.testing.assert_close(found, gradients(model, model, longer, targets), **tolerance)
