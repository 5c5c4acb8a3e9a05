import math

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(66)
KINDS = ["sphere", "cube", "torus", "cylinder", "cone"]
MIN_PTS, MAX_PTS = 24, 40


def surface(kind, n):
    u, v, w = torch.rand(3, n)
    a = 2 * math.pi * u
    if kind == "sphere":
        p = F.normalize(torch.randn(n, 3), dim=1)
    elif kind == "cube":
        p = torch.rand(n, 3) * 2 - 1
        axis = torch.randint(3, (n,))
        p[torch.arange(n), axis] = torch.where(v < 0.5, -1.0, 1.0)
    elif kind == "torus":
        b = 2 * math.pi * v
        r = 1 + 0.4 * torch.cos(b)
        p = torch.stack([r * torch.cos(a), r * torch.sin(a), 0.4 * torch.sin(b)], 1)
    elif kind == "cylinder":
        p = torch.stack([torch.cos(a), torch.sin(a), 3 * v - 1.5], 1)
    else:
        r = v.sqrt()
        p = torch.stack([r * torch.cos(a), r * torch.sin(a), 2 * (1 - r) - 1], 1)
    return p


def random_rotation():
    a = torch.rand(()) * 2 * math.pi
    c, s = torch.cos(a), torch.sin(a)
    return torch.tensor([[c, -s, 0.0], [s, c, 0.0], [0.0, 0.0, 1.0]])


def cloud(label):
    n = int(torch.randint(MIN_PTS, MAX_PTS + 1, ()))
    p = surface(KINDS[label], n) @ random_rotation().t() * (0.7 + 0.6 * torch.rand(()))
    p = p + 0.03 * torch.randn_like(p)
    p = p - p.mean(0)
    p = p / p.norm(dim=1).max()
    out = torch.zeros(MAX_PTS, 3)
    out[:n] = p
    return out, n


def dataset(n):
    y = torch.randint(len(KINDS), (n,))
    pts, sizes = zip(*(cloud(int(k)) for k in y))
    pad = torch.arange(MAX_PTS)[None] >= torch.tensor(sizes)[:, None]
    return torch.stack(pts), pad, y


class MAB(nn.Module):

    def __init__(self, d, heads):
        super().__init__()
        self.att = nn.MultiheadAttention(d, heads, batch_first=True)
        self.nq, self.nk, self.n2 = nn.LayerNorm(d), nn.LayerNorm(d), nn.LayerNorm(d)
        self.ff = nn.Sequential(nn.Linear(d, 2 * d), nn.ReLU(), nn.Linear(2 * d, d))

    def forward(self, x, y, pad=None):
        kv = self.nk(y)
        h = x + self.att(self.nq(x), kv, kv, key_padding_mask=pad, need_weights=False)[0]
        return h + self.ff(self.n2(h))


class ISAB(nn.Module):
    def __init__(self, d, heads, m):
        super().__init__()
        self.inducing = nn.Parameter(torch.empty(1, m, d))
        nn.init.xavier_uniform_(self.inducing)
        self.gather, self.scatter = MAB(d, heads), MAB(d, heads)

    def forward(self, x, pad):
        h = self.gather(self.inducing.expand(len(x), -1, -1), x, pad)
        return self.scatter(x, h)


class SetTransformer(nn.Module):
    def __init__(self, d=32, heads=4, m=6):
        super().__init__()
        self.inp = nn.Sequential(nn.Linear(4, d), nn.ReLU(), nn.Linear(d, d))
        self.enc = nn.ModuleList([ISAB(d, heads, m), ISAB(d, heads, m)])
        self.seed = nn.Parameter(torch.empty(1, 1, d))
        nn.init.xavier_uniform_(self.seed)
        self.pool = MAB(d, heads)
        self.head = nn.Sequential(nn.LayerNorm(d), nn.Linear(d, len(KINDS)))

    def forward(self, p, pad):
        h = self.inp(torch.cat([p, p.norm(dim=-1, keepdim=True)], -1))
        for layer in self.enc:
            h = layer(h, pad)
        return self.head(self.pool(self.seed.expand(len(p), -1, -1), h, pad)[:, 0])


STEPS, BATCH = 300, 24
pts, pad, y = dataset(1680)
vpts, vpad, vy = dataset(200)
model = SetTransformer()
opt = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.01)
sched = torch.optim.lr_scheduler.OneCycleLR(opt, 2e-3, total_steps=STEPS, pct_start=0.15)

perm = torch.randperm(MAX_PTS)
with torch.no_grad():
    assert torch.allclose(model(vpts[:4], vpad[:4]), model(vpts[:4, perm], vpad[:4, perm]), atol=1e-5)


def batches():
    while True:
        yield from torch.randperm(len(y)).view(-1, BATCH)


for step, i in zip(range(STEPS), batches()):
    loss = F.cross_entropy(model(pts[i], pad[i]), y[i])
    opt.zero_grad(set_to_none=True)
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    opt.step()
    sched.step()
    if step % 50 == 0 or step == STEPS - 1:
        with torch.no_grad():
            out = model(vpts, vpad)
        print(f"step {step:3d} loss {loss.item():.4f} | val loss {F.cross_entropy(out, vy).item():.4f} acc {(out.argmax(1) == vy).float().mean().item():.3f}")
