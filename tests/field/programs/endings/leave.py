"""Ways to leave: a status, a message, os._exit, an interrupt, a signal, and exit handlers that still run."""

from __future__ import annotations

import atexit
import os
import signal
import sys
import threading

import torch
from toy import finish, fit, seed, tiny_model

how = sys.argv[1]


def goodbye() -> None:
    print("exit handler", len(threading.enumerate()) > 0, flush=True)


atexit.register(goodbye)
seed()
model = tiny_model()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
fit(model, optimizer, steps=8)
finish(model, optimizer)
if how == "status":
    sys.exit(3)
if how == "message":
    sys.exit("that is all")
if how == "os-exit":
    os._exit(4)
if how == "interrupt":
    raise KeyboardInterrupt
if how == "sigint":
    os.kill(os.getpid(), signal.SIGINT)
if how == "sigterm":
    os.kill(os.getpid(), signal.SIGTERM)
if how == "exit-handler-fails":
    atexit.register(lambda: sys.exit(9))
if how == "kill":
    os.kill(os.getpid(), signal.SIGKILL)
