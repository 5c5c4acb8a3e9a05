import time

import numpy as np
import torch
from torch import nn

torch.manual_seed(13)
torch.set_num_threads(1)
MAX_ATOMS, TYPES, BONDS = 18, 5, 3
EN = np.array([0.2, 0.9, 1.6, -0.7, 0.4])


def molecule(rng):
    n = int(rng.integers(6, MAX_ATOMS + 1))
    z = rng.integers(0, TYPES, n)
    bond = np.zeros((n, n), np.int64)
    for i in range(1, n):
        j = int(rng.integers(max(0, i - 3), i))
        bond[i, j] = bond[j, i] = rng.integers(1, BONDS + 1)
    for _ in range(int(rng.integers(0, 3))):
        i, j = rng.choice(n, 2, replace=False)
        bond[i, j] = bond[j, i] = 1
    e = EN[z].sum() + 0.5 * (bond * np.abs(EN[z][:, None] - EN[z][None])).sum() / 2
    noise = 0.02 + 0.01 * n
    return z, bond, e + noise * rng.standard_normal()


def batch_of(mols):
    n = max(len(m[0]) for m in mols)
    z = torch.full((len(mols), n), TYPES)
    b = torch.zeros(len(mols), n, n, dtype=torch.long)
    for i, (zi, bi, _) in enumerate(mols):
        z[i, :len(zi)] = torch.from_numpy(zi)
        b[i, :len(zi), :len(zi)] = torch.from_numpy(bi)
    return z, b, torch.tensor([m[2] for m in mols], dtype=torch.float32)


class EdgeAttention(nn.Module):
    """Scores are kept as (batch, source, target, head); each target normalises over its bonded sources."""

    def __init__(self, d, heads):
        super().__init__()
        self.h = heads
        self.wq, self.wk, self.wv, self.wo = (nn.Linear(d, d) for _ in range(4))
        self.eb = nn.Embedding(BONDS + 1, heads)
        self.ev = nn.Embedding(BONDS + 1, d)

    def forward(self, x, bond):
        B, n, d = x.shape
        q, k, v = (w(x).view(B, n, self.h, -1) for w in (self.wq, self.wk, self.wv))
        s = torch.einsum("bihc,bjhc->bijh", k, q) * q.shape[-1] ** -0.5 + self.eb(bond)
        absent = (bond == 0).unsqueeze(-1)
        w = torch.nan_to_num(s.masked_fill(absent, float("-inf")).softmax(dim=1), nan=0.0)
        w = w * (bond > 0).sum(1)[:, None, :, None]
        msg = v.unsqueeze(2) * self.ev(bond).view(B, n, n, self.h, -1).sigmoid()
        return self.wo(torch.einsum("bijh,bijhc->bjhc", w, msg).flatten(2))


class Net(nn.Module):
    def __init__(self, d=32, depth=2, heads=4):
        super().__init__()
        self.atom = nn.Embedding(TYPES + 1, d, padding_idx=TYPES)
        self.att = nn.ModuleList([EdgeAttention(d, heads) for _ in range(depth)])
        self.ff = nn.ModuleList([nn.Sequential(nn.LayerNorm(d), nn.Linear(d, 2 * d), nn.SiLU(), nn.Linear(2 * d, d))
                                 for _ in range(depth)])
        self.norm = nn.ModuleList([nn.LayerNorm(d) for _ in range(depth)])
        self.read = nn.Sequential(nn.LayerNorm(d), nn.Linear(d, d), nn.SiLU(), nn.Linear(d, 2))

    def forward(self, z, bond):
        real = (z != TYPES).unsqueeze(-1)
        x = self.atom(z)
        for att, ff, nm in zip(self.att, self.ff, self.norm):
            x = x + att(nm(x), bond)
            x = x + ff(x)
        out = (self.read(x) * real).sum(1)
        return out[:, 0], out[:, 1] / 4


def nll(mu, logvar, y):
    return (0.5 * logvar + 0.5 * (y - mu) ** 2 * torch.exp(-logvar)).mean()


rng = np.random.default_rng(13)
train = [molecule(rng) for _ in range(2500)]
test = [molecule(rng) for _ in range(300)]
ys = np.array([m[2] for m in train])
mean, std = ys.mean(), ys.std()
scale = lambda y: y / std

net = Net()
opt = torch.optim.NAdam(net.parameters(), lr=2e-3)
steps, bs, t0 = 400, 24, time.time()
for step in range(steps):
    z, b, y = batch_of([train[i] for i in rng.integers(0, len(train), bs)])
    mu, lv = net(z, b)
    lv = lv.clamp(-8, 4)
    loss = nn.functional.mse_loss(mu, scale(y)) if step < 60 else nll(mu, lv, scale(y))
    opt.param_groups[0]["lr"] = 2e-3 * (1 - step / steps)
    opt.zero_grad()
    loss.backward()
    nn.utils.clip_grad_value_(net.parameters(), 0.5)
    opt.step()
    if step % 40 == 0 or step == steps - 1:
        print(f"step {step:3d} loss {loss.item():+.4f} mae {(mu - scale(y)).abs().mean().item() * std:.4f} {time.time() - t0:.1f}s")

with torch.no_grad():
    z, b, y = batch_of(test)
    mu, lv = net(z, b)
    err = mu * std - y
    print(f"test mae {err.abs().mean():.4f}  (predict mean: {(y - mean).abs().mean():.4f})  "
          f"z-score std {((mu - scale(y)) * torch.exp(-0.5 * lv)).std():.3f}")
