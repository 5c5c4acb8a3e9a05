import math

import numpy as np
import torch
import torch.nn as nn

torch.set_num_threads(1)
torch.manual_seed(9)
rng = np.random.default_rng(9)


def simulate(n_sensors=6, length=4000):
    t = np.arange(length)
    out = []
    for s in range(n_sensors):
        period = rng.uniform(15, 60)
        level = rng.uniform(5, 50)
        x = level + rng.uniform(1, 6) * np.sin(2 * np.pi * t / period + rng.uniform(0, 6))
        x += rng.uniform(0.5, 2) * np.sin(2 * np.pi * t / (period * 3.7))
        x += 0.15 * rng.standard_normal(length)
        out.append(x)
    series = np.stack(out).astype(np.float32)
    series[4, 2600:2690] = series[4, 2600]
    return torch.from_numpy(series)


class InstanceScale(nn.Module):
    def __init__(self):
        super().__init__()
        self.gain = nn.Parameter(torch.ones(1))
        self.shift = nn.Parameter(torch.zeros(1))

    def normalize(self, x):
        self.mu = x.mean(dim=1, keepdim=True)
        self.sigma = x.std(dim=1, keepdim=True)
        return (x - self.mu) / self.sigma * self.gain + self.shift

    def restore(self, y):
        return (y - self.shift) / self.gain * self.sigma + self.mu


class PatchForecaster(nn.Module):
    def __init__(self, history=64, horizon=16, patch=8, width=48, depth=2, heads=4):
        super().__init__()
        self.patch = patch
        self.scale = InstanceScale()
        self.lift = nn.Linear(patch, width)
        self.where = nn.Parameter(torch.randn(1, history // patch, width) * 0.05)
        layer = nn.TransformerEncoderLayer(width, heads, 2 * width, dropout=0.0, batch_first=True, activation="gelu")
        self.body = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
        self.out = nn.Linear(width * (history // patch), horizon)

    def forward(self, x):
        z = self.scale.normalize(x)
        h = self.lift(z.unfold(1, self.patch, self.patch)) + self.where
        h = self.body(h)
        return self.scale.restore(self.out(h.flatten(1)))


series = simulate()
history, horizon, batch = 64, 16, 32
model = PatchForecaster(history, horizon)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=1e-4)
criterion = nn.SmoothL1Loss()
offsets = torch.arange(history + horizon)

for step in range(240):
    which = torch.randint(series.size(0), (batch,))
    start = torch.randint(series.size(1) - history - horizon, (batch,))
    window = series[which[:, None], start[:, None] + offsets]
    past, future = window[:, :history], window[:, history:]
    pred = model(past)
    loss = criterion(pred, future)
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    if step % 20 == 0 or step == 239:
        print(f"step={step} loss={loss.item():.4f}")
