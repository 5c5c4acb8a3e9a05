import math

import torch
import torch.nn as nn
import torch.nn.functional as F

POINTS = 40
SHAPES = ("sphere", "cube", "cylinder", "torus", "cone")


def surface(kind, n, g):
    u, v = torch.rand(n, generator=g), torch.rand(n, generator=g)
    a = 2 * math.pi * u
    if kind == "sphere":
        z = 2 * v - 1
        r = (1 - z ** 2).clamp_min(0).sqrt()
        return torch.stack([r * a.cos(), r * a.sin(), z], 1)
    if kind == "cube":
        p = 2 * torch.rand(n, 3, generator=g) - 1
        face = torch.randint(3, (n,), generator=g)
        sign = torch.randint(0, 2, (n,), generator=g).float() * 2 - 1
        p[torch.arange(n), face] = sign
        return p
    if kind == "cylinder":
        return torch.stack([a.cos(), a.sin(), 2 * v - 1], 1)
    if kind == "torus":
        b = 2 * math.pi * v
        return torch.stack([(0.8 + 0.3 * b.cos()) * a.cos(), (0.8 + 0.3 * b.cos()) * a.sin(), 0.3 * b.sin()], 1)
    return torch.stack([(1 - v) * a.cos(), (1 - v) * a.sin(), 2 * v - 1], 1)


def build(clouds, seed):
    g = torch.Generator().manual_seed(seed)
    pts, lab = [], []
    for i in range(clouds):
        k = int(torch.randint(len(SHAPES), (1,), generator=g))
        n = POINTS if torch.rand(1, generator=g) > 0.0012 else int(torch.randint(24, POINTS, (1,), generator=g))
        p = surface(SHAPES[k], n, g) + 0.03 * torch.randn(n, 3, generator=g)
        t = float(torch.rand(1, generator=g)) * 2 * math.pi
        rot = torch.tensor([[math.cos(t), -math.sin(t), 0], [math.sin(t), math.cos(t), 0], [0, 0, 1.0]])
        p = p @ rot.t()
        if n < POINTS:
            p = torch.cat([p, p[: POINTS - n]])
        pts.append(p)
        lab.append(k)
    return torch.stack(pts), torch.tensor(lab)


class DistanceAttention(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(dim, dim * 3)
        self.site = nn.Linear(dim, 4)
        self.scale = nn.Parameter(torch.linspace(0.2, 1.5, heads).view(1, heads, 1, 1))
        self.out = nn.Linear(dim, dim)
        self.register_buffer("diag", torch.eye(POINTS, dtype=torch.bool))

    def distances(self, h):
        s = self.site(h)
        sq = (s[:, :, None] - s[:, None]).pow(2).sum(-1).masked_fill(self.diag, 1.0)
        return (sq + 1e-6).sqrt().masked_fill(self.diag, 0.0)

    def forward(self, h):
        b, n, d = h.shape
        q, k, v = self.qkv(h).view(b, n, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        logits = q @ k.transpose(-2, -1) / math.sqrt(d // self.heads)
        logits = logits - self.scale * self.distances(h)[:, None]
        mix = (logits.softmax(-1) @ v).transpose(1, 2).reshape(b, n, d)
        return self.out(mix)


class PointTransformer(nn.Module):
    def __init__(self, dim=48, heads=4, depth=2):
        super().__init__()
        self.lift = nn.Sequential(nn.Linear(3, dim), nn.GELU(), nn.Linear(dim, dim))
        self.att = nn.ModuleList(DistanceAttention(dim, heads) for _ in range(depth))
        self.ffn = nn.ModuleList(nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, 2 * dim), nn.GELU(),
                                               nn.Linear(2 * dim, dim)) for _ in range(depth))
        self.norms = nn.ModuleList(nn.LayerNorm(dim) for _ in range(depth))
        self.head = nn.Linear(2 * dim, len(SHAPES))

    def forward(self, p):
        h = self.lift(p)
        for att, ffn, norm in zip(self.att, self.ffn, self.norms):
            h = h + att(norm(h))
            h = h + ffn(h)
        return self.head(torch.cat([h.amax(1), h.mean(1)], -1))


if __name__ == "__main__":
    torch.manual_seed(17)
    x, y = build(2400, 0)
    vx, vy = build(300, 1)
    net = PointTransformer()
    opt = torch.optim.AdamW(net.parameters(), lr=1e-3, weight_decay=0.01)
    step = 0
    for epoch in range(3):
        net.train()
        for idx in torch.randperm(len(x)).split(32):
            loss = F.cross_entropy(net(x[idx]), y[idx])
            opt.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            opt.step()
            if step % 15 == 0:
                print(f"epoch {epoch} step {step} loss {loss.item():.4f}")
            step += 1
        net.eval()
        with torch.no_grad():
            out = torch.cat([net(c) for c in vx.split(100)])
        print(f"epoch {epoch} val loss {F.cross_entropy(out, vy).item():.4f} acc {(out.argmax(-1) == vy).float().mean().item():.4f}")
