"""Signatures, sources, names and identities of torch's functions, before and after training steps."""

from __future__ import annotations

import inspect

import torch
import torch.nn.functional as F
from torch import nn
from toy import digest, finish, fit, seed, tiny_model

FUNCTIONS = [
    F.cross_entropy,
    F.mse_loss,
    F.nll_loss,
    F.embedding,
    F.softmax,
    F.dropout,
    F.layer_norm,
    nn.utils.clip_grad_norm_,
    torch.autograd.backward,
    torch.autograd.grad,
    torch.Tensor.backward,
    nn.Module.zero_grad,
    torch.optim.Optimizer.zero_grad,
    torch.optim.AdamW.step,
    torch.amp.GradScaler.step,
    nn.Module.__init__,
    torch.utils.data.DataLoader.__iter__,
]


def describe() -> None:
    for function in FUNCTIONS:
        source = digest(inspect.getsource(function))
        print(function.__module__, function.__qualname__, source)
        print("    ", inspect.signature(function))
    print(torch.Tensor.item.__name__, callable(torch.Tensor.item), nn.Module.__call__.__name__)
    print(inspect.getmodule(F.cross_entropy).__name__, F.cross_entropy.__doc__[:30])


seed()
describe()
model = tiny_model()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
fit(model, optimizer, steps=8)
describe()
print(sorted(name for name in vars(torch.optim.AdamW) if not name.startswith("_abc")))
finish(model, optimizer)
