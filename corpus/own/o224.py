import copy

import torch
import torch.nn as nn
import torch.nn.functional as F


class Encoder(nn.Module):
    def __init__(self, d=64, out=48, length=18):
        super().__init__()
        self.inp = nn.Linear(6, d)
        self.pos = nn.Parameter(torch.randn(length, d) * 0.1)
        self.attn = nn.MultiheadAttention(d, 4, batch_first=True)
        self.n1, self.n2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.mlp = nn.Sequential(nn.Linear(d, 2 * d), nn.GELU(), nn.Linear(2 * d, d))
        self.proj = nn.Sequential(nn.Linear(d, d), nn.ReLU(), nn.Linear(d, out))

    def forward(self, x):
        h = self.inp(x) + self.pos
        y = self.n1(h)
        h = h + self.attn(y, y, y, need_weights=False)[0]
        h = h + self.mlp(self.n2(h))
        return F.normalize(self.proj(h.mean(1)), dim=-1)


class Momentum(nn.Module):
    def __init__(self, m=0.97, tau=0.1):
        super().__init__()
        self.q = Encoder()
        self.k = copy.deepcopy(self.q)
        for p in self.k.parameters():
            p.requires_grad = False
        self.m, self.tau = m, tau

    @torch.no_grad()
    def follow(self):
        for a, b in zip(self.q.parameters(), self.k.parameters()):
            b.data.mul_(self.m).add_(a.data, alpha=1 - self.m)

    def forward(self, one, two):
        q = self.q(one)
        with torch.no_grad():
            self.follow()
            k = self.k(two)
        return q @ k.T / self.tau, torch.arange(len(k))


def latent_views(n):
    z = torch.randn(n, 8)
    t = torch.arange(18.0)
    f = torch.arange(1, 5)[:, None] * t / 18 * 6.283
    basis = torch.cat((f.sin(), f.cos()), 0)
    wave = (z[:, :, None] * basis).unflatten(1, (4, 2)).sum(2)
    wave = torch.cat((wave, wave[:, :2] * wave[:, 2:]), 1).transpose(1, 2)
    return [wave * (0.8 + 0.4 * torch.rand(n, 1, 1)) + 0.3 * torch.randn(n, 18, 6) for _ in range(2)]


torch.manual_seed(19)
net = Momentum()
opt = torch.optim.SGD([p for p in net.parameters() if p.requires_grad], lr=0.1, momentum=0.9, weight_decay=1e-4)
for step in range(300):
    one, two = latent_views(64)
    logits, target = net(one, two)
    loss = F.cross_entropy(logits, target)
    opt.zero_grad()
    loss.backward()
    opt.step()
    if step % 25 == 0 or step == 299:
        print(f"step {step:3d} contrast {loss.item():.4f} top1 {(logits.argmax(1) == target).float().mean():.3f}")
