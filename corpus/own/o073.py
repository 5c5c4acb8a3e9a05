import csv
import io

import numpy as np
import torch
from torch import nn

torch.set_num_threads(1)
rng = np.random.default_rng(11)
torch.manual_seed(11)


def simulate(n, length):
    t = np.arange(length)
    signals, sheet = {}, io.StringIO()
    writer = csv.writer(sheet)
    for i in range(n):
        period = rng.uniform(4.0, 20.0)
        phase = rng.uniform(0, 2 * np.pi)
        wave = np.sin(2 * np.pi * t / period + phase) + 0.15 * rng.standard_normal(length)
        name = f"unit-{rng.integers(10**9):09d}"
        signals[name] = wave.astype(np.float32)
        writer.writerow([f"{period:07.4f}", name])
    return signals, sheet.getvalue()


signals, sheet = simulate(6000, 48)
records = sorted(csv.reader(io.StringIO(sheet)))
names = sorted(signals)
x = torch.from_numpy(np.stack([signals[k] for k in names]))
y = torch.tensor([float(r[0]) for r in records])
y = (y - y.mean()) / y.std()
perm = torch.randperm(len(x))
train, valid = perm[:-500], perm[-500:]


class PeriodNet(nn.Module):
    def __init__(self, width=48, patch=4, depth=3):
        super().__init__()
        self.patch = patch
        self.proj = nn.Linear(patch, width)
        self.pos = nn.Parameter(torch.randn(1, 12, width) * 0.1)
        self.blocks = nn.ModuleList()
        for _ in range(depth):
            self.blocks.append(nn.ModuleDict({
                "n1": nn.LayerNorm(width),
                "att": nn.MultiheadAttention(width, 4, batch_first=True),
                "n2": nn.LayerNorm(width),
                "mlp": nn.Sequential(nn.Linear(width, 128), nn.GELU(), nn.Linear(128, width)),
            }))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, 1)

    def forward(self, s):
        h = self.proj(s.unflatten(1, (-1, self.patch))) + self.pos
        for b in self.blocks:
            z = b["n1"](h)
            h = h + b["att"](z, z, z, need_weights=False)[0]
            h = h + b["mlp"](b["n2"](h))
        return self.head(self.norm(h).mean(1)).squeeze(-1)


model = PeriodNet()
opt = torch.optim.Adam(model.parameters(), lr=1e-3)
history = []
for step in range(160):
    pick = train[torch.randint(len(train), (48,))]
    loss = nn.functional.mse_loss(model(x[pick]), y[pick])
    opt.zero_grad()
    loss.backward()
    opt.step()
    history.append(loss.item())
    if (step + 1) % 20 == 0 or step == 0:
        print(f"[{step + 1:03d}] train mse loss {np.mean(history[-20:]):.4f}")
model.eval()
with torch.no_grad():
    pred = model(x[valid])
    r2 = 1 - ((pred - y[valid]) ** 2).mean() / y[valid].var()
print(f"valid r2 {r2:.3f}")
