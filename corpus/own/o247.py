import random

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, IterableDataset

NAMES = ["rise", "fall", "pulse", "step", "chirp", "saw"]
PER_CLASS, POINTS = 1280, 40


def curve(name, g):
    t = torch.linspace(0, 1, POINTS)
    c = 0.3 + 0.4 * torch.rand(1, generator=g)
    base = {
        "rise": t, "fall": 1 - t, "pulse": torch.exp(-((t - c) / 0.08) ** 2),
        "step": (t > c).float(), "chirp": torch.sin(30 * c * t * t), "saw": (t * 6 * c) % 1.0,
    }[name]
    return base * (0.7 + 0.6 * torch.rand(1, generator=g)) + 0.25 * torch.randn(POINTS, generator=g)


class Shards(IterableDataset):
    def __init__(self, per_class, buffer, seed):
        g = torch.Generator().manual_seed(seed)
        self.records = [(curve(n, g), k) for k, n in enumerate(NAMES) for _ in range(per_class)]
        self.buffer, self.rng = buffer, random.Random(seed)

    def __iter__(self):
        pool = []
        for record in self.records:
            pool.append(record)
            if len(pool) >= self.buffer:
                yield pool.pop(self.rng.randrange(len(pool)))
        self.rng.shuffle(pool)
        yield from pool


class CurveFormer(nn.Module):
    def __init__(self, d=48):
        super().__init__()
        self.stem = nn.Conv1d(1, d, 4, stride=4)
        self.pos = nn.Parameter(0.1 * torch.randn(POINTS // 4, d))
        enc = nn.TransformerEncoderLayer(d, 4, 96, 0.0, batch_first=True, norm_first=True)
        self.body = nn.TransformerEncoder(enc, 2, nn.LayerNorm(d), enable_nested_tensor=False)
        self.fc = nn.Linear(d, len(NAMES))

    def forward(self, x):
        return self.fc(self.body(self.stem(x[:, None]).transpose(1, 2) + self.pos).mean(1))


torch.manual_seed(66)
train = DataLoader(Shards(PER_CLASS, buffer=256, seed=1), batch_size=32)
test = list(DataLoader(Shards(60, buffer=1, seed=2), batch_size=120))
model = CurveFormer()
opt = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.01)
mean = 0.0
for i, (x, y) in enumerate(train):
    loss = F.cross_entropy(model(x), y)
    opt.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    opt.step()
    mean = loss.item() if i == 0 else 0.8 * mean + 0.2 * loss.item()
    if i % 20 == 0 or i == len(NAMES) * PER_CLASS // 32 - 1:
        print(f"batch {i:3d} loss {mean:.4f}")
model.eval()
with torch.no_grad():
    hits = sum((model(x).argmax(1) == y).sum().item() for x, y in test)
    total = sum(F.cross_entropy(model(x), y, reduction="sum").item() for x, y in test)
n = sum(len(y) for _, y in test)
print(f"test loss {total / n:.4f} accuracy {hits / n:.3f}")
