import copy
import time

import numpy as np
import torch
from torch import nn
import torch.nn.functional as F

SEED, N_MELS, FRAMES, N_WORDS = 8, 40, 64, 10
torch.manual_seed(SEED)
torch.set_num_threads(1)


class SpokenWords(torch.utils.data.Dataset):
    """Each word is a trajectory of two formants; speakers shift pitch, tempo and loudness."""

    def __init__(self, n, seed):
        rng = np.random.default_rng(seed)
        words = np.random.default_rng(123).uniform(6, 34, (N_WORDS, 2, 4))
        mel = np.arange(N_MELS)[None, :]
        self.x = np.zeros((n, FRAMES, N_MELS), np.float32)
        self.y = rng.integers(0, N_WORDS, n)
        for i, w in enumerate(self.y):
            length = rng.integers(30, 50)
            start = rng.integers(0, FRAMES - length)
            u = np.linspace(0, 3, length)
            energy = np.full((FRAMES, N_MELS), 1e-4)
            shift, loud = rng.normal(0, 1.0), rng.uniform(0.3, 2.0)
            for f in range(2):
                path = np.interp(u, np.arange(4), words[w, f]) + shift
                energy[start:start + length] += loud * np.exp(-((mel - path[:, None]) ** 2) / 4)
            energy *= rng.gamma(2.0, 0.5, energy.shape)
            self.x[i] = np.log(energy + 1e-6)
        self.x = torch.from_numpy(self.x)
        self.y = torch.from_numpy(self.y)

    def __len__(self):
        return len(self.y)

    def __getitem__(self, i):
        return self.x[i], self.y[i]


class ConvStem(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv1d(N_MELS, dim, 5, stride=2, padding=2, bias=False), nn.BatchNorm1d(dim), nn.GELU(),
            nn.Conv1d(dim, dim, 3, stride=2, padding=1, bias=False), nn.BatchNorm1d(dim), nn.GELU())

    def forward(self, x):
        return self.net(x.transpose(1, 2)).transpose(1, 2)


class KWS(nn.Module):
    def __init__(self, dim=64, depth=2):
        super().__init__()
        self.stem = ConvStem(dim)
        self.pos = nn.Parameter(torch.randn(1, FRAMES // 4, dim) * 0.02)
        self.enc = nn.TransformerEncoder(
            nn.TransformerEncoderLayer(dim, 4, 128, dropout=0.1, batch_first=True, norm_first=True),
            depth, enable_nested_tensor=False)
        self.head = nn.Linear(dim, N_WORDS)

    def forward(self, x):
        return self.head(self.enc(self.stem(x) + self.pos).mean(1))


class ModelEma:
    def __init__(self, model, decay=0.97):
        self.decay = decay
        self.module = copy.deepcopy(model).eval()
        for p in self.module.parameters():
            p.requires_grad_(False)

    @torch.no_grad()
    def update(self, model):
        for e, p in zip(self.module.parameters(), model.parameters()):
            e.mul_(self.decay).add_(p, alpha=1 - self.decay)
        for e, b in zip(self.module.buffers(), model.buffers()):
            e.copy_(b)


@torch.no_grad()
def test(net, loader):
    loss, hit, n = 0.0, 0, 0
    for x, y in loader:
        out = net(x)
        loss += F.cross_entropy(out, y, reduction="sum").item()
        hit += (out.argmax(1) == y).sum().item()
        n += len(y)
    return loss / n, hit / n


train_loader = torch.utils.data.DataLoader(SpokenWords(2400, 1), batch_size=32, shuffle=True, drop_last=True)
test_loader = torch.utils.data.DataLoader(SpokenWords(400, 2), batch_size=100)

model = KWS()
ema = ModelEma(model)
opt = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.02)
started = time.time()
step = 0
for epoch in range(4):
    model.train()
    for x, y in train_loader:
        loss = F.cross_entropy(model(x), y, label_smoothing=0.05)
        opt.zero_grad()
        loss.backward()
        opt.step()
        ema.update(model)
        if step % 25 == 0:
            print(f"epoch {epoch} step {step:3d} train loss {loss.item():.3f}")
        step += 1
    tl, ta = test(ema.module, test_loader)
    print(f"epoch {epoch} test loss {tl:.3f} test acc {ta:.3f} ({time.time() - started:.1f}s)")
