"""sys.settrace and sys.setprofile of the script: still there after each step, and events of its own lines the same."""

from __future__ import annotations

import cProfile
import sys
import threading
import types
from typing import Any

import torch
from toy import batch, finish, loss_of, seed, tiny_model

counts = {"trace": 0, "profile": 0}


def trace(frame: types.FrameType, event: str, argument: Any) -> Any:
    if frame.f_code.co_filename == __file__:
        counts["trace"] += 1
        return trace
    return None


def profile(frame: types.FrameType, event: str, argument: Any) -> None:
    if frame.f_code.co_filename == __file__ and event in ("call", "return"):
        counts["profile"] += 1


seed()
model = tiny_model()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)


def train(steps: int = 6) -> None:
    for step in range(steps):
        tokens, targets = batch()
        loss = loss_of(model(tokens), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(step, repr(loss.item()))


sys.settrace(trace)
train()
print(sys.gettrace() is trace)
sys.settrace(None)
sys.setprofile(profile)
train()
print(sys.getprofile() is profile)
sys.setprofile(None)
print(counts, sys.gettrace(), sys.getprofile(), threading.gettrace())
watcher = cProfile.Profile()
watcher.enable()
train()
watcher.disable()
finish(model, optimizer)
