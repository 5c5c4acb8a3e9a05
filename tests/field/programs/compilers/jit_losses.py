"""torch.jit.script of twenty layers, losses and functions by themselves, before and after a training step."""

from __future__ import annotations

import warnings

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from toy import finish, fit, seed, tiny_model

warnings.simplefilter("ignore")


def by_function(x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(x, y) + F.mse_loss(x, x) + F.nll_loss(F.log_softmax(x, dim=-1), y)


def attention(x: Tensor) -> Tensor:
    return F.softmax(F.scaled_dot_product_attention(x, x, x), dim=-1)


def clears(x: Tensor) -> None:
    x.sum().backward()


MODULES: list[nn.Module] = [
    nn.Linear(4, 4),
    nn.Embedding(4, 4),
    nn.EmbeddingBag(4, 4),
    nn.LayerNorm(4),
    nn.BatchNorm1d(4),
    nn.Dropout(),
    nn.GELU(),
    nn.Softmax(-1),
    nn.LSTM(4, 4),
    nn.Conv1d(2, 2, 2),
    nn.MultiheadAttention(4, 2),
    nn.TransformerEncoderLayer(4, 2),
    nn.CrossEntropyLoss(),
    nn.MSELoss(),
    nn.NLLLoss(),
    nn.BCEWithLogitsLoss(),
    nn.KLDivLoss(),
    nn.SmoothL1Loss(),
]


def script_all() -> None:
    for thing in [*MODULES, by_function, attention, clears]:
        name = getattr(thing, "__name__", type(thing).__name__)
        try:
            torch.jit.script(thing)
            print(name, "scripted")
        except Exception as error:
            print(name, type(error).__name__, str(error).strip().splitlines()[0])


seed()
script_all()
model = tiny_model()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
fit(model, optimizer, steps=8)
script_all()
finish(model, optimizer)
