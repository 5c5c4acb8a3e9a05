"""Hooks on tensors and graph nodes, post-accumulate hooks, saved-tensor hooks: each call is logged."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from toy import batch, digest, finish, loss_of, seed, tiny_model

seed()
model = tiny_model()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
log: list[Any] = []
model.head.weight.register_hook(lambda slope: slope * 0.5)
model.embed.weight.register_post_accumulate_grad_hook(
    lambda parameter: log.append(("accumulated", parameter.grad.norm().item()))
)
torch.autograd.graph.register_multi_grad_hook(
    tuple(model.blocks[0].parameters()), lambda slopes: log.append(("several", len(slopes)))
)


def pack(tensor: Tensor) -> Tensor:
    log.append(("pack", tuple(tensor.shape)))
    return tensor.detach().clone()


def unpack(kept: Tensor) -> Tensor:
    log.append(("unpack", tuple(kept.shape)))
    return kept


for step in range(10):
    tokens, targets = batch()
    with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
        logits = model(tokens)
    logits.register_hook(lambda slope: slope + 1e-4 * torch.randn_like(slope))
    logits.grad_fn.register_hook(lambda slopes_in, slopes_out: log.append("node"))
    logits.retain_grad()
    loss = loss_of(logits, targets)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(step, repr(loss.item()), len(log), repr(logits.grad.norm().item()))
print(digest(log))
finish(model, optimizer)
