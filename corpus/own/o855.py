import math
import numpy as np
import torch
from torch import nn, optim

SEED = 2024
torch.manual_seed(SEED)
np.random.seed(SEED)

LOOKBACK, PRED, CH = 48, 12, 3


def store_sales(n_stores=160, length=240):
    t = np.arange(length)
    out = []
    for _ in range(n_stores):
        level = np.exp(np.random.uniform(0, 5))
        week = np.random.uniform(0, 2 * np.pi)
        amp = np.random.uniform(0.1, 0.4, CH)
        trend = np.random.uniform(-0.002, 0.004)
        base = level * (1 + trend * t)
        chans = [base * (1 + amp[c] * np.sin(2 * np.pi * t / 12 + week + c)) for c in range(CH)]
        x = np.stack(chans, 1)
        out.append(x * (1 + 0.03 * np.random.randn(*x.shape)))
    return torch.tensor(np.stack(out), dtype=torch.float32)


class MixerBlock(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.tn, self.cn = nn.LayerNorm([LOOKBACK, CH]), nn.LayerNorm([LOOKBACK, CH])
        self.time = nn.Sequential(nn.Linear(LOOKBACK, width), nn.ReLU(), nn.Linear(width, LOOKBACK))
        self.chan = nn.Sequential(nn.Linear(CH, 24), nn.ReLU(), nn.Linear(24, CH))

    def forward(self, x):
        x = x + self.time(self.tn(x).transpose(1, 2)).transpose(1, 2)
        return x + self.chan(self.cn(x))


class TSMixer(nn.Module):
    def __init__(self, blocks=3, width=96):
        super().__init__()
        self.blocks = nn.Sequential(*[MixerBlock(width) for _ in range(blocks)])
        self.project = nn.Linear(LOOKBACK, PRED)

    def normalize(self, x):
        mean = x.mean(dim=0, keepdim=True)
        std = x.std(dim=0, keepdim=True) + 1e-3
        return (x - mean) / std, mean.mean(1, keepdim=True), std.mean(1, keepdim=True)

    def forward(self, x):
        x, mean, std = self.normalize(x)
        y = self.project(self.blocks(x).transpose(1, 2)).transpose(1, 2)
        return y * std + mean


data = store_sales()
tr, te = data[:, :180], data[:, 180 - LOOKBACK:]
model = TSMixer()
optimizer = optim.Adam(model.parameters(), lr=1e-3)
scheduler = optim.lr_scheduler.StepLR(optimizer, 120, 0.5)


def relative_mae(pred, y):
    return ((pred - y).abs() / y.abs().mean((1, 2), keepdim=True)).mean()


for it in range(400):
    s = np.random.randint(0, len(tr), 64)
    k = np.random.randint(0, 180 - LOOKBACK - PRED, 64)
    w = torch.stack([tr[a, b:b + LOOKBACK + PRED] for a, b in zip(s, k)])
    loss = relative_mae(model(w[:, :LOOKBACK]), w[:, LOOKBACK:])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    scheduler.step()
    if it % 50 == 0:
        print("iter {:4d} | train wape {:.4f}".format(it, loss.item()))

model.eval()
errs = []
with torch.no_grad():
    for b in range(0, te.shape[1] - LOOKBACK - PRED + 1, 6):
        errs.append(relative_mae(model(te[:, b:b + LOOKBACK]), te[:, b + LOOKBACK:b + LOOKBACK + PRED]).item())
print("test wape {:.4f}".format(sum(errs) / len(errs)))
