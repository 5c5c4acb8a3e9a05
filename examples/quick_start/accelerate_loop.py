"""Accelerate. The optimizer was built before the head was replaced."""

import torch
import torch.nn.functional as F
from accelerate import Accelerator
from plain import Model
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
text = torch.randint(1, 5, (20000,)).cumsum(0) % 32
loader = DataLoader(TensorDataset(text.unfold(0, 17, 17)), batch_size=16, shuffle=True)

accelerator = Accelerator(cpu=True)
model = Model()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
model.head = nn.Linear(32, 32)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
for (ids,) in loader:
    loss = F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
    accelerator.backward(loss)
    optimizer.step()
    optimizer.zero_grad()
print(loss.item())
