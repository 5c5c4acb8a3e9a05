import math
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(2)
gen = torch.Generator().manual_seed(2)
DTYPE = torch.bfloat16
POINTS, WIDTH = 12, 48


def sample_shapes(n):
    t = torch.linspace(0, 2 * math.pi, POINTS + 1)[:-1]
    k = torch.randint(2, 5, (n, 1), generator=gen)
    a = 0.15 + 0.2 * torch.rand(n, 1, generator=gen)
    ph = 2 * math.pi * torch.rand(n, 1, generator=gen)
    r = 1 + a * torch.cos(k * t + ph)
    return torch.stack([r * t.cos(), r * t.sin()], -1)


def time_features(t, dim):
    f = torch.exp(torch.linspace(0, math.log(100.0), dim // 2))
    arg = t[:, None] * f
    return torch.cat([arg.sin(), arg.cos()], -1)


class DiTBlock(nn.Module):
    def __init__(self, d, heads=4):
        super().__init__()
        self.n1 = nn.LayerNorm(d, elementwise_affine=False)
        self.n2 = nn.LayerNorm(d, elementwise_affine=False)
        self.qkv, self.proj = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.mlp = nn.Sequential(nn.Linear(d, 2 * d), nn.GELU(), nn.Linear(2 * d, d))
        self.mod = nn.Linear(d, 4 * d)
        self.heads = heads

    def forward(self, x, c):
        s1, b1, s2, b2 = self.mod(F.silu(c))[:, None].chunk(4, -1)
        y = self.n1(x) * (1 + s1) + b1
        bsz, n, d = y.shape
        q, k, v = self.qkv(y).view(bsz, n, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        o = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(bsz, n, d)
        x = x + self.proj(o)
        return x + self.mlp(self.n2(x) * (1 + s2) + b2)


class VelocityNet(nn.Module):
    def __init__(self, d=WIDTH, depth=2):
        super().__init__()
        self.inp = nn.Linear(2, d)
        self.pos = nn.Parameter(torch.randn(POINTS, d) * 0.2)
        self.temb = nn.Sequential(nn.Linear(d, d), nn.SiLU(), nn.Linear(d, d))
        self.blocks = nn.ModuleList(DiTBlock(d) for _ in range(depth))
        self.norm = nn.LayerNorm(d)
        self.out = nn.Linear(d, 2)

    def forward(self, x, t):
        c = self.temb(time_features(t, WIDTH).to(self.pos.dtype))
        h = self.inp(x.to(self.pos.dtype)) + self.pos
        for b in self.blocks:
            h = b(h, c)
        return self.out(self.norm(h))


def flow_loss(model, x1, noise, t):
    xt = (1 - t[:, None, None]) * noise + t[:, None, None] * x1
    with torch.autocast("cpu", dtype=DTYPE):
        v = model(xt, t)
    v = v.float()
    return F.mse_loss(v, x1 - noise)


data, held = sample_shapes(4000), sample_shapes(300)
held_noise = torch.randn(held.shape, generator=gen)
held_t = torch.rand(len(held), generator=gen)

model = VelocityNet()
opt = torch.optim.AdamW(model.parameters(), lr=1.5e-4, betas=(0.9, 0.99), weight_decay=0.0)
steps, batch = 750, 16

for step in range(1, steps + 1):
    for group in opt.param_groups:
        group["lr"] = 1.5e-4 * min(1.0, step / 50)
    idx = torch.randint(0, len(data), (batch,), generator=gen)
    x1 = data[idx]
    loss = flow_loss(model, x1, torch.randn(x1.shape, generator=gen), torch.rand(batch, generator=gen))
    opt.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    opt.step()
    if step % 100 == 0:
        with torch.no_grad():
            val = flow_loss(model, held, held_noise, held_t).item()
        print(f"step {step} train {loss.item():.4f} held-out {val:.4f}")

print(f"final held-out flow loss {val:.4f}")
