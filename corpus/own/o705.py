import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

N_CLASS, LENGTH, FEATS = 8, 24, 6
rng = np.random.default_rng(7)


def make_signals(n, rng):
    y = rng.integers(0, N_CLASS, n)
    noise = rng.uniform(0.1, 1.2, n)
    t = np.arange(LENGTH)[None, :, None]
    ch = np.arange(FEATS)[None, None, :]
    freq = (0.25 + 0.2 * (y % 4))[:, None, None]
    shift = np.where(y < 4, 0.5, -0.5)[:, None, None]
    phase = rng.uniform(0, 2 * np.pi, n)[:, None, None]
    x = np.sin(freq * t + shift * ch + phase) + noise[:, None, None] * rng.standard_normal((n, LENGTH, FEATS))
    return x.astype(np.float32), y.astype(np.int64), noise


class CurriculumSampler:

    def __init__(self, labels, difficulty, batch, fractions):
        self.labels, self.difficulty = labels, difficulty
        self.batch, self.fractions = batch, fractions

    def __iter__(self):
        for frac in self.fractions:
            limit = np.quantile(self.difficulty, frac)
            pool = np.flatnonzero(self.difficulty <= limit)
            bins = np.digitize(self.difficulty[pool], np.linspace(0, 1.2, 7))
            order = pool[np.lexsort((bins, self.labels[pool]))]
            for i in range(0, len(order) - self.batch + 1, self.batch):
                yield torch.from_numpy(order[i : i + self.batch])


class SignalNet(nn.Module):
    def __init__(self, dim=48):
        super().__init__()
        self.inp = nn.Linear(FEATS, dim)
        self.pos = nn.Parameter(torch.randn(LENGTH, dim) * 0.3)
        enc = nn.TransformerEncoderLayer(dim, 4, 96, 0.0, "gelu", batch_first=True, norm_first=True)
        self.enc = nn.TransformerEncoder(enc, 2, enable_nested_tensor=False)
        self.cls = nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, N_CLASS))

    def forward(self, x):
        return self.cls(self.enc(self.inp(x) + self.pos).mean(1))


def evaluate(net, x, y):
    net.eval()
    with torch.no_grad():
        out = net(x)
        res = F.cross_entropy(out, y).item(), (out.argmax(1) == y).float().mean().item()
    net.train()
    return res


torch.manual_seed(7)
x, y, hard = make_signals(3600, rng)
vx, vy, _ = make_signals(600, rng)
X, Y, VX, VY = map(torch.from_numpy, (x, y, vx, vy))

net = SignalNet()
opt = torch.optim.AdamW(net.parameters(), lr=2e-3, weight_decay=0.01)
sampler = CurriculumSampler(y, hard, 32, [0.3, 0.5, 0.75, 1.0])
for step, ix in enumerate(sampler):
    loss = F.cross_entropy(net(X[ix]), Y[ix])
    opt.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(net.parameters(), 5.0)
    opt.step()
    if step % 20 == 0:
        print(f"step {step:4d} loss {loss.item():.4f}")
    if step % 80 == 79:
        print("   held-out loss %.4f accuracy %.3f" % evaluate(net, VX, VY))
print("final: train loss %.4f" % loss.item(), "held-out loss %.4f accuracy %.3f" % evaluate(net, VX, VY))
