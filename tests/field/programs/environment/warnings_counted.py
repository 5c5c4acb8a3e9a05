"""Warnings shown once, always and caught: a watcher that touches the filters brings old ones up again."""

from __future__ import annotations

import sys
import warnings

import torch
from toy import batch, finish, loss_of, seed, tiny_model

sys.stderr.flush()
seed()
model = tiny_model()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
schedule = torch.optim.lr_scheduler.StepLR(optimizer, 5)
schedule.step()  # torch warns: before any optimizer step
print(float(torch.ones(1, requires_grad=True).sum()))  # torch warns: of the gradient
for step in range(10):
    tokens, targets = batch()
    loss = loss_of(model(tokens), targets)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    schedule.step()
    warnings.warn("shown once for its line", UserWarning, stacklevel=1)
    print(step, repr(loss.item()))
for kind in ("once", "always", "default"):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter(kind)
        for _ in range(4):
            warnings.warn(f"kind {kind}", DeprecationWarning, stacklevel=1)
            tokens, targets = batch()
            loss = loss_of(model(tokens), targets)
            loss.backward()
            optimizer.step()
    print(kind, [str(warning.message) for warning in caught])
print([entry[0] for entry in warnings.filters], warnings.showwarning.__module__)
finish(model, optimizer)
