"""Batches and settings in containers of the script's own classes, which print what they are asked for."""

from __future__ import annotations

from collections import OrderedDict, UserDict
from typing import Any

import torch
from torch import Tensor, nn
from toy import DEVICE, LENGTH, VOCABULARY, TinyLM, finish, seed


class Lazy(OrderedDict):
    """As the tables of `transformers`: a value is made when it is asked for."""

    def __getitem__(self, key: str) -> Any:
        print("made", key)
        return super().__getitem__(key)

    def values(self) -> Any:
        print("asked for all values")
        return [self[key] for key in self]

    def items(self) -> Any:
        print("asked for all items")
        return [(key, self[key]) for key in self]


class Shy(list):
    def __iter__(self) -> Any:
        print("walked over")
        return super().__iter__()

    def __reversed__(self) -> Any:
        print("walked back")
        return super().__reversed__()

    def __len__(self) -> int:
        print("counted")
        return super().__len__()


class Batch(UserDict):
    def values(self) -> Any:
        print("asked for the batch's values")
        return super().values()


class Proxy:
    """What it is is found out when somebody asks."""

    @property
    def __class__(self) -> Any:
        print("asked what it is")
        return dict


class Wrapped(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = TinyLM()

    def forward(self, batch: Lazy, names: Shy) -> Tensor:
        return self.inner(OrderedDict.__getitem__(batch, "tokens"))


seed()
model = Wrapped().to(DEVICE)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
table, names, proxy = Lazy(one=1, two=2), Shy(["a", "b"]), Proxy()
for step in range(25):
    tokens = torch.randint(0, VOCABULARY, (4, LENGTH + 1), device=DEVICE)
    batch = Batch(tokens=tokens[:, :-1], targets=tokens[:, 1:])
    given = Lazy(tokens=batch["tokens"])
    scores = model(given, names)
    loss = nn.functional.cross_entropy(scores.flatten(0, 1), batch["targets"].flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(step, repr(loss.item()))
finish(model, optimizer)
