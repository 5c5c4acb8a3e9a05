import torch
import torch.nn as nn
import torch.nn.functional as F

POINTS = 32


def solid(kind, gen):
    u = torch.rand(POINTS, generator=gen)
    v = torch.rand(POINTS, generator=gen)
    th = 2 * torch.pi * u
    if kind == 0:
        z = 2 * v - 1
        r = (1 - z ** 2).clamp(min=0).sqrt()
        p = torch.stack([r * th.cos(), r * th.sin(), z], 1)
    elif kind == 1:
        p = torch.stack([0.8 * th.cos(), 0.8 * th.sin(), 1.6 * v - 0.8], 1)
    elif kind == 2:
        p = torch.stack([(1 - v) * th.cos(), (1 - v) * th.sin(), 1.6 * v - 0.8], 1)
    elif kind == 3:
        ph = 2 * torch.pi * v
        p = torch.stack([(0.8 + 0.3 * ph.cos()) * th.cos(), (0.8 + 0.3 * ph.cos()) * th.sin(), 0.3 * ph.sin()], 1)
    else:
        p = 1.6 * torch.rand(POINTS, 3, generator=gen) - 0.8
        ax = torch.randint(0, 3, (POINTS,), generator=gen)
        p[torch.arange(POINTS), ax] = 0.8 * (2.0 * (u > 0.5) - 1)
    rot, _ = torch.linalg.qr(torch.randn(3, 3, generator=gen))
    return (p + 0.05 * torch.randn(POINTS, 3, generator=gen)) @ rot


def clouds(n, gen):
    y = torch.randint(0, 5, (n,), generator=gen)
    return torch.stack([solid(int(k), gen) for k in y]), y


class CrossMix(nn.Module):
    """softmax(q k) v between two sets, heads kept in a separate einsum axis"""

    def __init__(self, d, heads):
        super().__init__()
        self.e = d // heads
        self.heads = heads
        self.q, self.k, self.v, self.o = (nn.Linear(d, d) for _ in range(4))
        self.nq, self.nk = nn.LayerNorm(d), nn.LayerNorm(d)
        self.ff = nn.Sequential(nn.LayerNorm(d), nn.Linear(d, 2 * d), nn.GELU(), nn.Linear(2 * d, d))

    def forward(self, a, b):
        split = lambda t: t.unflatten(-1, (self.heads, self.e))
        q, k, v = split(self.q(self.nq(a))), split(self.k(self.nk(b))), split(self.v(self.nk(b)))
        logits = torch.einsum("bqhe,bkhe->bhqk", q, k) / self.e ** 0.5
        y = torch.einsum("bhqk,bkhe->bqhe", logits.softmax(-1), v).flatten(-2)
        a = a + self.o(y)
        return a + self.ff(a)


class CloudNet(nn.Module):
    def __init__(self, d=64):
        super().__init__()
        self.lift = nn.Sequential(nn.Linear(3, d), nn.GELU(), nn.Linear(d, d))
        self.mix = nn.ModuleList([CrossMix(d, 1) for _ in range(2)])
        self.seed = nn.Parameter(torch.randn(1, 2, d))
        self.pool = CrossMix(d, 1)
        self.out = nn.Linear(2 * d, 5)

    def forward(self, p):
        h = self.lift(p)
        for m in self.mix:
            h = m(h, h)
        return self.out(self.pool(self.seed.expand(len(p), -1, -1), h).flatten(1))


torch.manual_seed(29)
gen = torch.Generator().manual_seed(29)
train_x, train_y = clouds(1000, gen)
val_x, val_y = clouds(400, gen)
net = CloudNet()
opt = torch.optim.AdamW(net.parameters(), lr=1e-3, weight_decay=0.01)
for it in range(220):
    idx = torch.randint(0, len(train_x), (24,))
    loss = F.cross_entropy(net(train_x[idx]), train_y[idx])
    opt.zero_grad()
    loss.backward()
    opt.step()
    if it % 12 == 0:
        print(f"it {it} loss {loss.item():.4f}", flush=True)
with torch.no_grad():
    print(f"val accuracy {(net(val_x).argmax(1) == val_y).float().mean().item():.4f}")
