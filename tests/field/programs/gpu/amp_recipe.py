"""PyTorch's AMP recipe under `set_default_device("cuda")`: allocations of ours would follow the default device."""

from __future__ import annotations

import torch
from torch import nn
from toy import finish, seed

torch.set_default_device("cuda")
seed()
model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
criterion = nn.MSELoss()
scaler = torch.amp.GradScaler("cuda", init_scale=2.0**40, growth_interval=8)
for epoch in range(5):
    for _ in range(6):
        inputs, targets = torch.randn(32, 64), torch.randn(32, 8)
        with torch.autocast(device_type="cuda", dtype=torch.float16):
            output = model(inputs)
            loss = criterion(output, targets)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm=0.1)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    print(epoch, repr(loss.item()), scaler.get_scale(), torch.empty(0).device)
finish(model, optimizer, scaler)
