import math
import time

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(31)
torch.set_num_threads(1)
NLAT, NLON = 6, 12


def simulate(days, seed):
    """Zonal advection that depends on latitude, a diurnal-like forcing, damping."""
    rng = np.random.default_rng(seed)
    k = np.fft.rfftfreq(NLON, 1 / NLON)
    speed = np.linspace(-0.9, 1.3, NLAT)[:, None]
    damp = np.exp(-0.08 - 0.02 * k ** 2)[None]
    f = np.fft.rfft(rng.standard_normal((NLAT, NLON)), axis=1)
    out = np.zeros((days, NLAT, NLON), np.float32)
    for d in range(days):
        f = f * np.exp(-2j * np.pi * k * speed / NLON) * damp
        f = f + 0.25 * np.fft.rfft(rng.standard_normal((NLAT, NLON)), axis=1) * (k < 4)
        out[d] = np.fft.irfft(f, NLON, axis=1)
    return torch.from_numpy(out)


class Lion(torch.optim.Optimizer):
    def __init__(self, params, lr=1e-4, betas=(0.9, 0.99), weight_decay=0.0):
        super().__init__(params, dict(lr=lr, betas=betas, weight_decay=weight_decay))

    @torch.no_grad()
    def step(self):
        for g in self.param_groups:
            b1, b2 = g["betas"]
            for p in g["params"]:
                if p.grad is None:
                    continue
                st = self.state[p]
                if not st:
                    st["m"] = torch.zeros_like(p)
                p.mul_(1 - g["lr"] * g["weight_decay"])
                p.add_(torch.sign(b1 * st["m"] + (1 - b1) * p.grad), alpha=-g["lr"])
                st["m"].mul_(b2).add_(p.grad, alpha=1 - b2)


class Block(nn.Module):
    def __init__(self, d, h):
        super().__init__()
        self.h = h
        self.a, self.b = nn.RMSNorm(d), nn.RMSNorm(d)
        self.qkv, self.o = nn.Linear(d, 3 * d, bias=False), nn.Linear(d, d, bias=False)
        self.bias = nn.Parameter(torch.zeros(h, NLAT, NLAT, NLON))
        self.up, self.down = nn.Linear(d, 4 * d, bias=False), nn.Linear(2 * d, d, bias=False)
        nn.init.zeros_(self.o.weight)
        nn.init.zeros_(self.down.weight)
        lon = torch.arange(NLON)
        self.register_buffer("dlon", (lon[:, None] - lon[None]) % NLON, persistent=False)

    def forward(self, x):
        B, n, d = x.shape
        q, k, v = self.qkv(self.a(x)).view(B, n, 3, self.h, d // self.h).permute(2, 0, 3, 1, 4)
        rel = self.bias[:, :, :, self.dlon].permute(0, 1, 3, 2, 4).reshape(1, self.h, n, n)
        x = x + self.o(F.scaled_dot_product_attention(q, k, v, attn_mask=rel).transpose(1, 2).reshape(B, n, d))
        g, u = self.up(self.b(x)).chunk(2, -1)
        return x + self.down(F.silu(g) * u)


class Forecaster(nn.Module):
    """Predicts the change with respect to the last analysed field."""

    def __init__(self, d=48, h=6, depth=2):
        super().__init__()
        self.inp = nn.Linear(2, d)
        self.lat = nn.Parameter(torch.randn(NLAT, 1, d) * 0.1)
        self.blocks = nn.ModuleList(Block(d, h) for _ in range(depth))
        self.out = nn.Linear(d, 1)
        nn.init.zeros_(self.out.weight)

    def forward(self, prev, cur):
        x = self.inp(torch.stack([prev, cur], -1)) + self.lat
        x = x.flatten(1, 2)
        for b in self.blocks:
            x = b(x)
        return cur + self.out(x).view_as(cur)


field = simulate(1600, 0)
field = field / field[:1200].std()
AREA = torch.cos(torch.linspace(-1.2, 1.2, NLAT))[:, None].expand(NLAT, NLON)
net = Forecaster().eval()
decay, rest = [], []
for name, p in net.named_parameters():
    (decay if p.ndim == 2 and "inp" not in name else rest).append(p)
opt = Lion([{"params": decay, "weight_decay": 0.02}, {"params": rest}], lr=2.5e-3)
STEPS, MICRO, ACC = 280, 8, 2
sched = torch.optim.lr_scheduler.LambdaLR(opt, lambda s: s / 20 if s < 20 else 0.5 * (1 + math.cos(math.pi * (s - 20) / (STEPS - 20))))


def area_sse(pred, truth, valid):
    return ((pred - truth).square() * AREA * valid).sum()


t0 = time.time()
for step in range(STEPS):
    chunks = []
    for _ in range(ACC):
        i = torch.randint(1, 1197, (MICRO,))
        shift = int(torch.randint(0, NLON, (1,)))
        prev, cur, nxt = (torch.roll(field[j], shift, dims=-1) for j in (i - 1, i, i + 2))
        valid = (torch.rand(MICRO, NLAT, NLON) < torch.rand(MICRO, 1, 1) * 0.5 + 0.5).float()
        chunks.append((prev, cur, nxt, valid))
    norm = sum((AREA * c[3]).sum() for c in chunks)
    total = 0.0
    for prev, cur, nxt, valid in chunks:
        loss = area_sse(net(prev, cur), nxt, valid) / norm
        loss.backward()
        total += loss.item()
    nn.utils.clip_grad_norm_(net.parameters(), 1e-2)
    opt.step()
    sched.step()
    opt.zero_grad()
    if step % 20 == 0 or step == STEPS - 1:
        print(f"{step:4d} weighted mse {total:.4f} lr {sched.get_last_lr()[0]:.1e} {time.time() - t0:.1f}s")

with torch.no_grad():
    i = torch.arange(1250, 1590)
    one = torch.ones(())
    den = AREA.sum() * len(i)
    print(f"test weighted mse {area_sse(net(field[i - 1], field[i]), field[i + 2], one) / den:.4f} "
          f"(persistence {area_sse(field[i], field[i + 2], one) / den:.4f}, climatology {area_sse(field[:1200].mean(0), field[i + 2], one) / den:.4f})")
