"""Handlers for SIGUSR1, SIGTERM and a timer, and exit handlers: they run between any two lines, ours included."""

from __future__ import annotations

import atexit
import os
import signal
import sys
import time
import types

import torch
from toy import batch, finish, loss_of, seed, tiny_model

got: list[str] = []


def note(number: int, frame: types.FrameType | None) -> None:
    got.append(signal.Signals(number).name)


for number in (signal.SIGUSR1, signal.SIGTERM, signal.SIGALRM):
    signal.signal(number, note)
for number in (signal.SIGINT, signal.SIGPIPE, signal.SIGHUP, signal.SIGCHLD):
    print(number, signal.getsignal(number))
atexit.register(lambda: print("last", got, flush=True))
atexit.register(lambda: print("last but one", flush=True))
seed()
model = tiny_model()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
signal.setitimer(signal.ITIMER_REAL, 0.01)
for step in range(15):
    tokens, targets = batch()
    loss = loss_of(model(tokens), targets)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(step, repr(loss.item()))
    if step in (5, 10):
        os.kill(os.getpid(), signal.SIGUSR1 if step == 5 else signal.SIGTERM)
while "SIGALRM" not in got:
    time.sleep(0.01)
print(sorted(got), signal.getitimer(signal.ITIMER_REAL))
finish(model, optimizer)
got.sort()
sys.exit(7)
