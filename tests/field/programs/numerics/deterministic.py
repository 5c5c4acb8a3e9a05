"""Deterministic algorithms and anomaly mode in float64: kernels may refuse, tracebacks are stored for each op."""

from __future__ import annotations

import warnings

import torch
from toy import batch, finish, loss_of, seed, tiny_model

torch.set_default_dtype(torch.float64)
torch.autograd.set_detect_anomaly(True)
seed()
torch.use_deterministic_algorithms(True)
model = tiny_model()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for step in range(10):
    tokens, targets = batch()
    loss = loss_of(model(tokens), targets)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    strict = torch.are_deterministic_algorithms_enabled()
    print(step, repr(loss.item()), strict, torch.is_anomaly_enabled())
weight = torch.tensor([-1.0], requires_grad=True)
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    try:
        (weight.sqrt() * 0).sum().backward()
    except RuntimeError as error:
        print(str(error).splitlines()[0])
# The end of the stack is the script's; its beginning is whatever started the script.
print([str(warning.message).splitlines()[0] for warning in caught])
print([str(warning.message).rstrip().splitlines()[-1] for warning in caught])
finish(model, optimizer)
