import math
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(1)
device = torch.device("cuda")
KINDS, LENGTH, WIDTH, BATCH = 16, 128, 384, 48
generator = torch.Generator().manual_seed(2)
shapes = torch.randn(KINDS, LENGTH, 8, generator=generator)
pool_kinds = torch.randint(KINDS, (20000,), generator=generator)


class Watcher:
    def __init__(self):
        self.rows = []

    def note(self, model, loss):
        sizes = {name: p.grad.norm().item() for name, p in model.named_parameters()}
        value = loss.item()
        if math.isnan(value):
            raise RuntimeError("the loss is not a number")
        ranked = sorted(sizes.items(), key=lambda pair: -pair[1])
        self.rows.append((time.time(), value, "; ".join(f"{name}={size:.4f}" for name, size in ranked)))


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.inp = nn.Linear(8, WIDTH)
        self.places = nn.Parameter(0.02 * torch.randn(LENGTH, WIDTH))
        self.body = nn.ModuleList(
            nn.TransformerEncoderLayer(WIDTH, 6, 2 * WIDTH, 0.0, batch_first=True, norm_first=True) for _ in range(6)
        )
        self.out = nn.Linear(WIDTH, KINDS)

    def forward(self, x):
        h = self.inp(x) + self.places
        for layer in self.body:
            h = layer(h)
        return self.out(h.mean(1))


shapes, pool_kinds = shapes.to(device), pool_kinds.to(device)
model, watcher = Classifier().to(device), Watcher()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=True)
for step in range(300):
    at = torch.randint(len(pool_kinds), (BATCH,), device=device)
    kind = pool_kinds[at]
    x = shapes[kind] + 2.0 * torch.randn(BATCH, LENGTH, 8, device=device)
    loss = F.cross_entropy(model(x), kind)
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    watcher.note(model, loss)
    optimizer.step()
    if step % 20 == 0:
        print(f"step {step} loss {watcher.rows[-1][1]:.4f}")
