"""A daemon's habits: standard error closed, standard output sent to a file, in the middle of training."""

from __future__ import annotations

import os
import sys

import torch
from toy import finish, fit, seed, tiny_model

seed()
model = tiny_model()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
fit(model, optimizer, steps=4)
sys.stderr.close()
sys.stderr = None
kept = sys.stdout
with open("log.txt", "w") as log:
    sys.stdout = log
    fit(model, optimizer, steps=6)
sys.stdout = kept
fit(model, optimizer, steps=2)
finish(model, optimizer)
opened = os.open("after.txt", os.O_CREAT | os.O_WRONLY)
os.write(opened, b"the descriptors are the script's\n")
os.close(opened)
