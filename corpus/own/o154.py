import math
import torch
import torch.nn.functional as F
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(88)


class RMSNorm(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.scale = dim ** 0.5
        self.gamma = nn.Parameter(torch.ones(dim))

    def forward(self, x):
        return F.normalize(x) * self.scale * self.gamma


class Block(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.norm_a, self.norm_f = RMSNorm(dim), RMSNorm(dim)
        self.to_qkv = nn.Linear(dim, dim * 3, bias=False)
        self.to_out = nn.Linear(dim, dim, bias=False)
        self.net = nn.Sequential(nn.Linear(dim, dim * 2), nn.GELU(), nn.Linear(dim * 2, dim))

    def forward(self, x):
        q, k, v = self.to_qkv(self.norm_a(x)).chunk(3, -1)
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in (q, k, v))
        x = x + self.to_out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        return x + self.net(self.norm_f(x))


class PatchTagger(nn.Module):
    def __init__(self, patch, dim, depth, classes):
        super().__init__()
        self.inp = nn.Linear(patch, dim, bias=False)
        self.norm_in = RMSNorm(dim)
        self.pos = nn.Parameter(torch.randn(24, dim) * 0.02)
        self.blocks = nn.ModuleList([Block(dim, 4) for _ in range(depth)])
        self.norm_out = RMSNorm(dim)
        self.out = nn.Linear(dim, classes)

    def forward(self, s):
        x = self.norm_in(self.inp(s)) + self.pos
        for b in self.blocks:
            x = b(x)
        return self.out(self.norm_out(x))


def signals(n, frames=24, patch=16):
    kind = torch.randint(0, 4, (n, frames))
    t = torch.linspace(0, 1, patch)
    phase = torch.rand(n, frames, 1) * 0.3
    u = t + phase
    shapes = torch.stack([
        torch.sin(2 * math.pi * u),
        torch.sign(torch.sin(2 * math.pi * u)),
        2 * (u - u.floor()) - 1,
        torch.sin(4 * math.pi * u),
    ], 0)
    wave = shapes.gather(0, kind[None, :, :, None].expand(1, n, frames, patch))[0]
    gain = torch.exp(2.0 * torch.randn(n, frames, 1))
    return gain * (wave + 0.05 * torch.randn_like(wave)), kind


net = PatchTagger(16, 48, 2, 4)
opt = torch.optim.AdamW(net.parameters(), lr=2e-3, weight_decay=1e-2)
for k in range(180):
    s, y = signals(16)
    z = net(s)
    loss = F.cross_entropy(z.flatten(0, 1), y.flatten())
    opt.zero_grad()
    loss.backward()
    opt.step()
    if k % 18 == 0 or k == 179:
        print("k=%d loss=%.4f acc=%.3f" % (k, loss.item(), (z.argmax(-1) == y).float().mean().item()))
