"""Passes that only count operations, before the training and in the middle of it: their tensors have no values."""

from __future__ import annotations

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.flop_counter import FlopCounterMode
from toy import DEVICE, LENGTH, VOCABULARY, TinyLM, finish, fit, loss_of, seed, tiny_model


def count() -> None:
    for place in (torch.device("meta"), FakeTensorMode()):
        with place, FlopCounterMode(display=False) as counter:
            model = TinyLM()
            tokens = torch.randint(0, VOCABULARY, (4, LENGTH))
            loss_of(model(tokens), tokens).backward()
        print(counter.get_total_flops())


seed()
with torch.device("cpu"):
    count()
model = tiny_model()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
fit(model, optimizer, steps=12)
count()
fit(model, optimizer, steps=12)
print(DEVICE.type)
finish(model, optimizer)
