"""Deep copies of model and optimizer in the middle of a run, trained on beside the originals."""

from __future__ import annotations

import copy

import torch
from toy import finish, fit, seed, tiny_model

seed()
model = tiny_model()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
schedule = torch.optim.lr_scheduler.StepLR(optimizer, 4)
fit(model, optimizer, steps=6)
twin, twin_optimizer, twin_schedule = copy.deepcopy((model, optimizer, schedule))
print(twin_optimizer.param_groups[0]["params"][0] is twin.embed.weight)
print(twin_schedule.optimizer is twin_optimizer, sorted(vars(twin_optimizer)))
fit(twin, twin_optimizer, steps=6, word="twin")
twin_schedule.step()
fit(model, optimizer, steps=4)
lone = copy.deepcopy(twin)
lone_optimizer = torch.optim.SGD(lone.parameters(), lr=0.1)
fit(lone, lone_optimizer, steps=4, word="lone")
clone = copy.copy(model)
print(clone.embed is model.embed, sorted(vars(clone)) == sorted(vars(model)))
finish(model, optimizer, twin, twin_optimizer, lone, lone_optimizer)
