"""torch.profiler over training steps: every operator of somebody else would be in the printed table."""

from __future__ import annotations

import torch
from torch.profiler import ProfilerActivity, profile, record_function
from toy import DEVICE, finish, fit, seed, tiny_model

seed()
model = tiny_model()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
fit(model, optimizer, steps=3)
with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as profiler:
    with record_function("three steps"):
        fit(model, optimizer, steps=3)
for event in sorted(profiler.key_averages(), key=lambda event: event.key):
    # CUDA's own calls come and go with the state of its allocator.
    if DEVICE.type == "cpu" or event.key.startswith("aten::"):
        print(event.key, event.count)
with torch.autograd.profiler.emit_nvtx(enabled=False):
    fit(model, optimizer, steps=3)
finish(model, optimizer)
