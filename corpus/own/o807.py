import copy
import math
import torch
import torch.nn as nn

torch.set_num_threads(1)
torch.manual_seed(37)
H, W, CH, P = 12, 24, 2, 3
lat = torch.linspace(-75, 75, H) * math.pi / 180
lat_w = (lat.cos() / lat.cos().mean()).view(1, 1, H, 1)


def simulate(n_traj, T):
    """Two advected fields on a cylinder; wind depends on latitude, fields exchange and diffuse."""
    kx, ky = torch.arange(W) * 2 * math.pi / W, torch.arange(H) * math.pi / H
    x = torch.zeros(n_traj, CH, H, W)
    for _ in range(4):
        a, p, q = torch.randn(n_traj, CH, 1, 1), torch.rand(n_traj, CH, 1, 1) * 6.28, torch.rand(n_traj, CH, 1, 1) * 6.28
        m, l = torch.randint(1, 4, (n_traj, CH, 1, 1)), torch.randint(1, 3, (n_traj, CH, 1, 1))
        x += 0.6 * a * torch.sin(m * kx + p) * torch.cos(l * ky[:, None] + q)
    wind = 0.8 + 0.6 * torch.cos(2 * lat)
    freq = torch.fft.rfftfreq(W) * W
    phase = torch.exp(-2j * math.pi * freq[None] * wind[:, None] / W)
    out = [x]
    for _ in range(T - 1):
        x = torch.fft.irfft(torch.fft.rfft(x) * phase, n=W)
        u, v = x[:, :1], x[:, 1:]
        x = torch.cat([u + 0.15 * v, v - 0.15 * u], 1) / math.sqrt(1 + 0.15 ** 2)
        out.append(x)
    return torch.stack(out, 1)


class Lion(torch.optim.Optimizer):
    def __init__(self, params, lr=1e-4, betas=(0.9, 0.99), weight_decay=0.0):
        super().__init__(params, dict(lr=lr, betas=betas, weight_decay=weight_decay))

    @torch.no_grad()
    def step(self, closure=None):
        for g in self.param_groups:
            b1, b2 = g["betas"]
            for p in g["params"]:
                if p.grad is None:
                    continue
                m = self.state[p].setdefault("m", torch.zeros_like(p))
                p.mul_(1 - g["lr"] * g["weight_decay"])
                p.add_((m * b1 + p.grad * (1 - b1)).sign_(), alpha=-g["lr"])
                m.mul_(b2).add_(p.grad, alpha=1 - b2)


class Emulator(nn.Module):
    def __init__(self, d=72, layers=3):
        super().__init__()
        self.inp = nn.Conv2d(CH, d, P, P)
        self.pos = nn.Parameter(0.3 * torch.randn(1, (H // P) * (W // P), d))
        layer = nn.TransformerEncoderLayer(d, 4, 2 * d, 0.0, "gelu", batch_first=True, norm_first=True)
        self.body = nn.TransformerEncoder(layer, layers, nn.LayerNorm(d), enable_nested_tensor=False)
        self.head = nn.Linear(d, CH * P * P)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def forward(self, x):
        t = self.body(self.inp(x).flatten(2).transpose(1, 2) + self.pos)
        y = self.head(t).view(-1, H // P, W // P, CH, P, P).permute(0, 3, 1, 4, 2, 5)
        return x + y.reshape(x.shape)


def weighted_mse(a, b):
    return ((a - b) ** 2 * lat_w).mean()


data, test = simulate(300, 8), simulate(24, 8)
net = Emulator()
ema = copy.deepcopy(net).requires_grad_(False)
steps = 420
opt = Lion(net.parameters(), lr=4e-4, weight_decay=0.05)
sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, steps, eta_min=2e-5)
for s in range(steps):
    i, t = torch.randint(0, len(data), (16,)), torch.randint(0, 6, (16,))
    x0, x1, x2 = data[i, t], data[i, t + 1], data[i, t + 2]
    loss = weighted_mse(net(x0), x1)
    if s >= 150:
        with torch.no_grad():
            warm = net(x0)
        loss = loss + weighted_mse(net(warm), x2)
    opt.zero_grad()
    loss.backward()
    opt.step()
    sched.step()
    with torch.no_grad():
        for pe, p in zip(ema.parameters(), net.parameters()):
            pe.lerp_(p, 0.03)
    if s % 42 == 0 or s == steps - 1:
        with torch.no_grad():
            x, err, base = test[:, 0], [], []
            for k in range(1, 5):
                x = ema(x)
                err.append(weighted_mse(x, test[:, k]).sqrt().item())
                base.append(weighted_mse(test[:, 0], test[:, k]).sqrt().item())
        print(f"step {s:3d} loss {loss.item():.4f} ema rollout rmse {[round(e, 3) for e in err]} "
              f"persistence {[round(e, 3) for e in base]}")
