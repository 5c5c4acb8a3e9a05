import math
import torch
from torch import nn


class Block(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.ln = nn.LayerNorm(d, elementwise_affine=False)
        self.ff = nn.Sequential(nn.Linear(d, 2 * d), nn.SiLU(), nn.Linear(2 * d, d))
        self.mod = nn.Linear(d, 3 * d)
        nn.init.zeros_(self.mod.weight)
        nn.init.zeros_(self.mod.bias)

    def forward(self, x, c):
        s, b, g = self.mod(c).chunk(3, -1)
        return x + g * self.ff(self.ln(x) * (1 + s) + b)


class VelocityNet(nn.Module):
    def __init__(self, d=128, depth=4):
        super().__init__()
        self.freq = nn.Parameter(torch.exp(torch.linspace(0, 4, 16)), requires_grad=False)
        self.t_in = nn.Sequential(nn.Linear(32, d), nn.SiLU(), nn.Linear(d, d))
        self.x_in = nn.Linear(2, d)
        self.blocks = nn.ModuleList(Block(d) for _ in range(depth))
        self.out = nn.Linear(d, 2)

    def forward(self, x, t):
        ang = t[:, None] * self.freq
        c = self.t_in(torch.cat([ang.sin(), ang.cos()], -1))
        h = self.x_in(x)
        for b in self.blocks:
            h = b(h, c)
        return self.out(h)


class FlowTrainer:
    def __init__(self, total=400, base_lr=2e-3, warmup=30, min_lr=1e-5):
        torch.manual_seed(17)
        self.total, self.base_lr, self.warmup, self.min_lr = total, base_lr, warmup, min_lr
        self.net = VelocityNet()
        self.opt = torch.optim.Adam(self.net.parameters(), lr=base_lr)
        self.sched = torch.optim.lr_scheduler.LambdaLR(self.opt, self.lr_at)

    def lr_at(self, it):
        peak = self.base_lr
        if it < self.warmup:
            return peak * (it + 1) / self.warmup
        frac = (it - self.warmup) / max(1, self.total - self.warmup)
        return self.min_lr + 0.5 * (1 + math.cos(math.pi * frac)) * (peak - self.min_lr)

    def data(self, n):
        k = torch.randint(0, 8, (n,))
        ang = k * math.pi / 4
        return 2.0 * torch.stack([ang.cos(), ang.sin()], -1) + 0.12 * torch.randn(n, 2)

    def loss(self, n):
        x1, x0 = self.data(n), torch.randn(n, 2)
        t = torch.rand(n)
        xt = torch.lerp(x0, x1, t[:, None])
        return (self.net(xt, t) - (x1 - x0)).square().mean()

    def fit(self):
        for it in range(self.total):
            loss = self.loss(512)
            self.opt.zero_grad()
            loss.backward()
            self.opt.step()
            self.sched.step()
            if it % 50 == 0:
                print(f"{it:5d} flow loss {loss.item():.4f}")

    @torch.no_grad()
    def sample(self, n, steps=40):
        x = torch.randn(n, 2)
        for i in range(steps):
            t = torch.full((n,), (i + 0.5) / steps)
            x = x + self.net(x, t) / steps
        return x


tr = FlowTrainer()
tr.fit()
with torch.no_grad():
    val = sum(tr.loss(2048).item() for _ in range(5)) / 5
s, real = tr.sample(1000), tr.data(1000)
ed = 2 * torch.cdist(s, real).mean() - torch.cdist(s, s).mean() - torch.cdist(real, real).mean()
print(f"held-out flow loss {val:.4f} energy distance of samples {ed.item():.4f}")
