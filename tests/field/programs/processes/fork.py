"""os.fork in the middle of training: a child that trains on and leaves by os._exit, one that leaves by sys.exit."""

from __future__ import annotations

import os
import sys

import torch
from toy import digest, finish, fit, seed, tiny_model

seed()
model = tiny_model()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
fit(model, optimizer, steps=6)


def status_of(child: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


child = os.fork()
if child == 0:
    fit(model, optimizer, steps=4, word="child")
    print("child", digest(model), flush=True)
    os._exit(3)
print("first child", status_of(child), flush=True)
child = os.fork()
if child == 0:
    print("second child leaves", flush=True)
    sys.exit(5)
print("second child", status_of(child), flush=True)
fit(model, optimizer, steps=6)
finish(model, optimizer)
