import math
import numpy as np
import torch
from torch import nn


class SensorData(torch.utils.data.Dataset):
    def __init__(self, sensors=60, length=600, look=64, ahead=16, seed=0):
        rng = np.random.default_rng(seed)
        t = np.arange(length)
        rows = []
        for i in range(sensors):
            period = rng.uniform(12, 40)
            wave = rng.uniform(1, 20) * np.sin(2 * math.pi * t / period + rng.uniform(0, 6))
            row = wave + rng.uniform(-50, 50) + rng.normal(0, 0.3, length)
            if i == 27:
                off = int(rng.integers(300, 480))
                row[off:off + 90] = 0.0
            rows.append(row)
        self.data = torch.tensor(np.stack(rows), dtype=torch.float32)
        self.look, self.ahead = look, ahead
        self.per = length - look - ahead

    def __len__(self):
        return self.data.size(0) * self.per

    def __getitem__(self, i):
        s, a = divmod(i, self.per)
        row = self.data[s]
        return row[a:a + self.look], row[a + self.look:a + self.look + self.ahead]


class SeriesNorm(nn.Module):
    def __init__(self):
        super().__init__()
        self.gain = nn.Parameter(torch.ones(1))
        self.shift = nn.Parameter(torch.zeros(1))

    def forward(self, x):
        self.mu = x.mean(-1, keepdim=True).detach()
        self.sd = x.std(-1, keepdim=True).detach()
        return (x - self.mu) / self.sd * self.gain + self.shift

    def inverse(self, y):
        return (y - self.shift) / self.gain * self.sd + self.mu


class PatchForecaster(nn.Module):
    def __init__(self, look=64, ahead=16, patch=8, d=48):
        super().__init__()
        self.patch = patch
        self.norm = SeriesNorm()
        self.inp = nn.Linear(patch, d)
        self.pos = nn.Parameter(torch.randn(look // patch, d) * 0.02)
        self.enc = nn.TransformerEncoder(
            nn.TransformerEncoderLayer(d, 4, 96, dropout=0.0, batch_first=True, activation="gelu"), 2)
        self.out = nn.Linear(d * (look // patch), ahead)

    def forward(self, x):
        z = self.norm(x).unfold(-1, self.patch, self.patch)
        z = self.enc(self.inp(z) + self.pos)
        return self.norm.inverse(self.out(z.flatten(1)))


torch.manual_seed(30)
data = SensorData()
loader = torch.utils.data.DataLoader(data, batch_size=32, shuffle=True, drop_last=True)
model = PatchForecaster()
opt = torch.optim.Adam(model.parameters(), lr=1e-3)
huber = nn.SmoothL1Loss()
for i, (past, future) in enumerate(loader):
    loss = huber(model(past), future)
    opt.zero_grad()
    loss.backward()
    opt.step()
    if i % 20 == 0:
        print(f"[{i:03d}] huber {loss.item():.4f}")
    if i == 240:
        break
