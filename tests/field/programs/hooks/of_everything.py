"""Global module hooks, hooks of optimizers (one and all) and of their state dicts, counted by name."""

from __future__ import annotations

import collections

import torch
from torch.nn.modules import module as modules
from torch.optim import optimizer as optimizers
from toy import batch, finish, loss_of, seed, tiny_model

seen: collections.Counter[str] = collections.Counter()


def note(word: str) -> None:
    seen[word] += 1


modules.register_module_forward_hook(lambda m, *_: note(f"forward {type(m).__name__}"))
modules.register_module_forward_pre_hook(lambda m, *_: note(f"before {type(m).__name__}"))
modules.register_module_full_backward_hook(lambda m, *_: note(f"backward {type(m).__name__}"))
modules.register_module_parameter_registration_hook(lambda m, name, p: note("parameter"))
optimizers.register_optimizer_step_pre_hook(lambda *_: note("any step begins"))
optimizers.register_optimizer_step_post_hook(lambda *_: note("any step ends"))
seed()
model = tiny_model()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
optimizer.register_step_pre_hook(lambda *_: note("step begins"))
optimizer.register_step_post_hook(lambda *_: note("step ends"))
optimizer.register_state_dict_pre_hook(lambda *_: note("saving"))
optimizer.register_state_dict_post_hook(lambda *_: note("saved"))
optimizer.register_load_state_dict_post_hook(lambda *_: note("loaded"))
for step in range(12):
    tokens, targets = batch()
    loss = loss_of(model(tokens), targets)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(step, repr(loss.item()), sum(seen.values()))
    if step == 6:
        optimizer.load_state_dict(optimizer.state_dict())
print(sorted(seen.items()))
finish(model, optimizer)
