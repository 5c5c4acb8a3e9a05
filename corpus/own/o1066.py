import math
from dataclasses import dataclass

import torch
from torch import nn
import torch.nn.functional as F


@dataclass
class Args:
    dim: int = 64
    heads: int = 4
    depth: int = 2
    size: int = 12
    patch: int = 3
    classes: int = 4
    steps: int = 250
    batch: int = 24
    lr: float = 2e-4
    seed: int = 5


def sample_data(n, a, gen):
    y = torch.randint(a.classes, (n,), generator=gen)
    cx = 3.0 + 5.0 * (y % 2).float() + 0.5 * torch.randn(n, generator=gen)
    cy = 3.0 + 5.0 * (y // 2).float() + 0.5 * torch.randn(n, generator=gen)
    g = torch.arange(a.size).float()
    d2 = (g[None, None, :] - cx[:, None, None]) ** 2 + (g[None, :, None] - cy[:, None, None]) ** 2
    img = 2.0 * torch.exp(-d2 / 5.0) - 1.0
    k = a.size // a.patch
    x = img.view(n, k, a.patch, k, a.patch).permute(0, 1, 3, 2, 4).reshape(n, k * k, a.patch ** 2)
    return x, y


def timestep_features(t, dim):
    freq = torch.exp(-math.log(10000.0) * torch.arange(dim // 2).float() / (dim // 2))
    ang = 1000.0 * t[:, None].float() * freq
    return torch.cat([ang.cos(), ang.sin()], -1)


class DiTBlock(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.n1 = nn.LayerNorm(dim, elementwise_affine=False)
        self.n2 = nn.LayerNorm(dim, elementwise_affine=False)
        self.qkv = nn.Linear(dim, 3 * dim)
        self.out = nn.Linear(dim, dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(approximate="tanh"), nn.Linear(4 * dim, dim))
        self.ada = nn.Sequential(nn.SiLU(), nn.Linear(dim, 6 * dim))

    def forward(self, x, c):
        s1, b1, g1, s2, b2, g2 = self.ada(c)[:, None].chunk(6, -1)
        b, t, d = x.shape
        h = self.n1(x) * (1 + s1) + b1
        q, k, v = self.qkv(h).view(b, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        h = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, t, d)
        x = x + g1 * self.out(h)
        return x + g2 * self.mlp(self.n2(x) * (1 + s2) + b2)


class DiT(nn.Module):
    def __init__(self, a):
        super().__init__()
        n = (a.size // a.patch) ** 2
        self.a = a
        self.inp = nn.Linear(a.patch ** 2, a.dim)
        self.pos = nn.Parameter(torch.randn(1, n, a.dim))
        self.time = nn.Sequential(nn.Linear(a.dim, a.dim), nn.SiLU(), nn.Linear(a.dim, a.dim))
        self.label = nn.Embedding(a.classes, a.dim)
        self.blocks = nn.ModuleList(DiTBlock(a.dim, a.heads) for _ in range(a.depth))
        self.norm = nn.LayerNorm(a.dim)
        self.final = nn.Linear(a.dim, a.patch ** 2)
        for m in self.modules():
            if isinstance(m, nn.Linear):
                nn.init.xavier_uniform_(m.weight)
                nn.init.zeros_(m.bias)

    def forward(self, x, t, y):
        dtype = self.inp.weight.dtype
        c = self.time(timestep_features(t, self.a.dim).to(dtype)) + self.label(y)
        h = self.inp(x.to(dtype)) + self.pos
        for blk in self.blocks:
            h = blk(h, c)
        return self.final(self.norm(h)).float()


def flow_loss(model, x1, y, gen):
    x0 = torch.randn(x1.shape, generator=gen)
    t = torch.rand(len(x1), generator=gen)
    xt = (1 - t)[:, None, None] * x0 + t[:, None, None] * x1
    return F.mse_loss(model(xt, t, y), x1 - x0)


def run(a):
    torch.manual_seed(a.seed)
    gen = torch.Generator().manual_seed(a.seed)
    model = DiT(a).to(torch.bfloat16)
    opt = torch.optim.AdamW(model.parameters(), lr=a.lr, betas=(0.9, 0.99), weight_decay=0.0)
    for step in range(a.steps):
        x, y = sample_data(a.batch, a, gen)
        loss = flow_loss(model, x, y, gen)
        opt.zero_grad(set_to_none=True)
        loss.backward()
        opt.step()
        if step % 20 == 0 or step == a.steps - 1:
            print(f"step {step:4d} loss {loss.item():.4f}")
    model.eval()
    eval_gen = torch.Generator().manual_seed(1234)
    with torch.no_grad():
        x, y = sample_data(256, a, eval_gen)
        print(f"eval loss {flow_loss(model, x, y, eval_gen).item():.4f}")
        z = torch.randn(x.shape, generator=eval_gen)
        for i in range(20):
            z = z + model(z, torch.full((len(z),), i / 20), y) / 20
    print(f"distance of samples to class mean {(z - x).pow(2).mean().item():.4f}")


run(Args())
