import math

import torch
import torch.nn as nn
import torch.nn.functional as F


def tree_points(n, gen):
    branch = torch.randint(6, (n,), generator=gen)
    centre = torch.stack([torch.cos(branch * math.pi / 3), torch.sin(branch * math.pi / 3)], 1) * 1.5
    along = torch.rand(n, 1, generator=gen) * 0.8
    x = centre * (1 + along) + 0.05 * torch.randn(n, 2, generator=gen)
    joints = [x]
    for k in range(1, 6):
        ang = 0.3 * k
        rot = torch.tensor([[math.cos(ang), -math.sin(ang)], [math.sin(ang), math.cos(ang)]])
        joints.append(x @ rot.t() * (1 - 0.1 * k))
    return torch.stack(joints, 1), branch


class Modulated(nn.Module):
    def __init__(self, d, heads):
        super().__init__()
        self.n1 = nn.LayerNorm(d, elementwise_affine=False)
        self.n2 = nn.LayerNorm(d, elementwise_affine=False)
        self.att = nn.MultiheadAttention(d, heads, batch_first=True)
        self.mlp = nn.Sequential(nn.Linear(d, 3 * d), nn.SiLU(), nn.Linear(3 * d, d))
        self.ada = nn.Linear(d, 6 * d)
        nn.init.zeros_(self.ada.weight)
        nn.init.zeros_(self.ada.bias)

    def forward(self, x, c):
        a1, s1, g1, a2, s2, g2 = self.ada(F.silu(c)).unsqueeze(1).chunk(6, -1)
        h = self.n1(x) * (1 + a1) + s1
        x = x + g1 * self.att(h, h, h, need_weights=False)[0]
        return x + g2 * self.mlp(self.n2(x) * (1 + a2) + s2)


class Velocity(nn.Module):
    def __init__(self, d=64, depth=3):
        super().__init__()
        self.inp = nn.Linear(2, d)
        self.pos = nn.Parameter(torch.randn(1, 6, d) * 0.5)
        self.t1, self.t2 = nn.Linear(32, d), nn.Linear(d, d)
        self.kind = nn.Embedding(7, d)
        self.blocks = nn.ModuleList(Modulated(d, 4) for _ in range(depth))
        self.norm = nn.LayerNorm(d)
        self.out = nn.Linear(d, 2)
        nn.init.zeros_(self.out.weight)
        nn.init.zeros_(self.out.bias)
        self.register_buffer("freq", 2 ** torch.linspace(0, 6, 16))

    def forward(self, x, t, y):
        ang = t[:, None] * self.freq
        c = self.t2(F.silu(self.t1(torch.cat([ang.sin(), ang.cos()], -1)))) + self.kind(y)
        h = self.inp(x) + self.pos
        for blk in self.blocks:
            h = blk(h, c)
        return self.out(self.norm(h))


def objective(net, gen, batch):
    x1, y = tree_points(batch, gen)
    y = torch.where(torch.rand(batch, generator=gen) < 0.15, torch.tensor(6), y)
    x0 = torch.randn(x1.shape, generator=gen)
    t = torch.sigmoid(torch.randn(batch, generator=gen))
    xt = torch.lerp(x0, x1, t[:, None, None])
    return (net(xt, t, y) - (x1 - x0)).square().mean()


@torch.no_grad()
def generate(net, y, gen, guidance=1.5, steps=24):
    z = torch.randn(len(y), 6, 2, generator=gen)
    free = torch.full_like(y, 6)
    for i in range(steps):
        t = torch.full((len(y),), i / steps)
        u = net(z, t, free)
        z = z + (u + guidance * (net(z, t, y) - u)) / steps
    return z


torch.manual_seed(30)
gen = torch.Generator().manual_seed(30)
net = Velocity()
ema = {k: v.clone() for k, v in net.state_dict().items()}
opt = torch.optim.AdamW(net.parameters(), lr=2e-3, weight_decay=0.0)
for step in range(260):
    for g in opt.param_groups:
        g["lr"] = 2e-3 * min(1.0, (step + 1) / 20)
    loss = objective(net, gen, 64)
    opt.zero_grad()
    loss.backward()
    opt.step()
    decay = min(0.98, (1 + step) / (10 + step))
    with torch.no_grad():
        for k, v in net.state_dict().items():
            ema[k].lerp_(v, 1 - decay)
    if step % 20 == 0 or step == 259:
        print(f"step {step:4d} loss {loss.item():.4f}")

net.load_state_dict(ema)
net.eval()
g2 = torch.Generator().manual_seed(5)
real, y = tree_points(300, g2)
fake = generate(net, y, g2)
near = torch.cdist(fake.flatten(1), real.flatten(1)).min(1)
print(f"mean distance to nearest real {near.values.mean().item():.4f}")
print(f"label agreement {(y[near.indices] == y).float().mean().item():.4f}")
print(f"distance between random pair {torch.cdist(real.flatten(1), real.flatten(1)).mean().item():.4f}")
