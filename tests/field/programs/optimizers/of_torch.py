"""Torch's own optimizers with the options people set: groups, a group added on the way, a part frozen."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import nn, optim
from toy import DEVICE, batch, finish, loss_of, seed, tiny_model

Make = Callable[[list[dict[str, Any]]], optim.Optimizer]
KINDS: dict[str, Make] = {
    "adamw-fused": lambda groups: optim.AdamW(groups, lr=1e-3, fused=True),
    "adamw-foreach": lambda groups: optim.AdamW(groups, lr=1e-3, foreach=True, amsgrad=True),
    "adamw-tensor-lr": lambda groups: optim.AdamW(groups, lr=torch.tensor(1e-3)),
    "sgd-nesterov": lambda groups: optim.SGD(groups, lr=0.1, momentum=0.9, nesterov=True),
    "rmsprop-centered": lambda groups: optim.RMSprop(groups, lr=1e-3, centered=True),
    "adafactor": lambda groups: optim.Adafactor(groups, lr=1e-2),
    "rprop": lambda groups: optim.Rprop(groups, lr=1e-3),
    "asgd": lambda groups: optim.ASGD(groups, lr=1e-2),
    "adadelta": lambda groups: optim.Adadelta(groups, maximize=False),
    "nadam": lambda groups: optim.NAdam(groups, decoupled_weight_decay=True),
    "radam": lambda groups: optim.RAdam(groups),
    "adamax": lambda groups: optim.Adamax(groups),
}

for kind in sys.argv[1:] or KINDS:
    seed()
    model = tiny_model()
    parameters = list(model.parameters())
    groups = [{"params": parameters[:3]}, {"params": parameters[3:], "weight_decay": 0.01}]
    optimizer = KINDS[kind](groups)
    extra = nn.Parameter(torch.zeros(16, 16, device=DEVICE))
    for step in range(8):
        if step == 3:
            optimizer.param_groups[0]["lr"] = optimizer.param_groups[0]["lr"] * 0.1
            optimizer.add_param_group({"params": [extra]})
        if step == 5:
            model.blocks[0].requires_grad_(False)
        tokens, targets = batch()
        loss = loss_of(model(tokens), targets)
        if step >= 3:
            loss = loss + (extra - 1).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(kind, step, repr(loss.item()))
    finish(model, optimizer)
