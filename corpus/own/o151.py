import math
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(9)



class Block(nn.Module):
    def __init__(self, d, heads):
        super().__init__()
        self.heads = heads
        self.n1 = nn.LayerNorm(d, elementwise_affine=False)
        self.n2 = nn.LayerNorm(d, elementwise_affine=False)
        self.qkv, self.proj = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.ff = nn.Sequential(nn.Linear(d, 2 * d), nn.GELU(), nn.Linear(2 * d, d))
        self.mod = nn.Linear(d, 6 * d)
        nn.init.zeros_(self.mod.weight)
        nn.init.zeros_(self.mod.bias)

    def forward(self, x, c):
        s1, b1, g1, s2, b2, g2 = self.mod(F.silu(c))[:, None].chunk(6, -1)
        q, k, v = self.qkv(self.n1(x) * (1 + s1) + b1).chunk(3, -1)
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in (q, k, v))
        a = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        x = x + g1 * self.proj(a)
        return x + g2 * self.ff(self.n2(x) * (1 + s2) + b2)


class Denoiser(nn.Module):
    def __init__(self, channels=4, places=16, d=48, depth=2):
        super().__init__()
        self.inp = nn.Linear(channels, d)
        self.pos = nn.Parameter(torch.randn(places, d) * 0.1)
        self.level = nn.Sequential(nn.Linear(16, d), nn.SiLU(), nn.Linear(d, d))
        self.blocks = nn.ModuleList(Block(d, 4) for _ in range(depth))
        self.norm = nn.LayerNorm(d, elementwise_affine=False)
        self.out = nn.Linear(d, channels)
        nn.init.zeros_(self.out.weight)
        nn.init.zeros_(self.out.bias)

    def forward(self, x, t):
        f = t[:, None] * torch.exp(torch.linspace(0, 4, 8))
        c = self.level(torch.cat([f.sin(), f.cos()], -1))
        x = self.inp(x) + self.pos
        for block in self.blocks:
            x = block(x, c)
        return self.out(self.norm(x))


def clean(n):
    phase = torch.rand(n, 1, 4) * 2 * math.pi
    speed = torch.tensor([1.0, 2.0, 3.0, 4.0]) * 2 * math.pi / 16
    return torch.sin(torch.arange(16)[None, :, None] * speed + phase)


net = Denoiser()
opt = torch.optim.AdamW(net.parameters(), lr=2e-3)
for step in range(220):
    x, t = clean(32), torch.rand(32)
    noise = torch.randn_like(x)
    mixed = (1 - t)[:, None, None] * x + t[:, None, None] * noise
    loss = F.mse_loss(net(mixed, t), noise - x)
    opt.zero_grad()
    loss.backward()
    opt.step()
    if step % 20 == 0 or step == 219:
        print(f"step {step} loss {loss.item():.4f}")
