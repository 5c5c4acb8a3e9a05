"""Every kind of module hook, some that change values: a forward pass more would run them once more."""

from __future__ import annotations

from typing import Any

import torch
from toy import batch, digest, finish, loss_of, seed, tiny_model

seed()
model = tiny_model()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
log: list[Any] = []
first, second = model.blocks
first.register_forward_pre_hook(lambda module, args: (args[0] * 1.01,))
first.register_forward_hook(lambda module, args, out: out + 1e-3, prepend=True)
first.register_forward_hook(
    lambda module, args, kwargs, out: log.append(("kwargs", sorted(kwargs))), with_kwargs=True
)
second.register_full_backward_pre_hook(lambda module, slope: (slope[0] * 0.9,))
second.register_full_backward_hook(
    lambda module, slope_in, slope_out: log.append(("back", slope_out[0].norm().item()))
)
model.head.register_forward_hook(lambda *_: log.append("always"), always_call=True)
model.register_state_dict_post_hook(lambda module, state, *_: log.append(len(state)))
model.register_load_state_dict_post_hook(lambda module, keys: log.append("loaded"))
model.register_state_dict_pre_hook(lambda *_: log.append("saving"))
for step in range(12):
    tokens, targets = batch()
    loss = loss_of(model(tokens), targets)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(step, repr(loss.item()), len(log))
    if step % 5 == 4:
        model.load_state_dict(model.state_dict())
print(digest(log), [len(module._forward_hooks) for module in model.modules()])
print([len(module._backward_hooks) for module in model.modules()])
finish(model, optimizer)
