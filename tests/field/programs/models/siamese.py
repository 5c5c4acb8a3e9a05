"""A siamese network: one module called three times a step, triplet loss, a StepLR by epoch."""

from __future__ import annotations

import torch
from torch import nn
from toy import DEVICE, finish, seed

seed()
model = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Dropout(0.2), nn.Linear(32, 8)).to(DEVICE)
criterion = nn.TripletMarginLoss(margin=1.0)
optimizer = torch.optim.Adadelta(model.parameters(), lr=1.0)
schedule = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.7)
centres = torch.randn(5, 10)
for epoch in range(3):
    for step in range(5):
        classes = torch.randint(0, 5, (16,))
        others = (classes + torch.randint(1, 5, (16,))) % 5
        anchor, near, far = (
            (centres[kind] + 0.1 * torch.randn(16, 10)).to(DEVICE)
            for kind in (classes, classes, others)
        )
        loss = criterion(model(anchor), model(near), model(far))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(epoch, step, repr(loss.item()))
    schedule.step()
finish(model, optimizer, schedule.get_last_lr())
