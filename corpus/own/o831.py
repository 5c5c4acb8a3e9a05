import math
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(27)
torch.set_num_threads(1)
CH, T, HOR = 4, 40, 1


def plant(n):
    s = torch.randn(n, 6)
    rot = torch.zeros(6, 6)
    for i, (w, r) in enumerate([(0.25, 0.99), (0.6, 0.98), (1.1, 0.97)]):
        c, d = r * math.cos(w), r * math.sin(w)
        rot[2 * i:2 * i + 2, 2 * i:2 * i + 2] = torch.tensor([[c, -d], [d, c]])
    g = torch.Generator().manual_seed(1)
    obs = torch.randn(6, CH, generator=g) / 2
    out = []
    for _ in range(T + HOR):
        s = s @ rot.T + 0.03 * torch.randn(n, 6)
        out.append(s @ obs)
    y = torch.stack(out, 1) + 0.05 * torch.randn(n, T + HOR, CH)
    gone = torch.rand(n, T + HOR, CH) < 0.35
    start = torch.randint(0, T - 8, (n,))
    span = torch.arange(T + HOR)[None]
    gone |= ((span >= start[:, None]) & (span < start[:, None] + 5))[..., None]
    return y.masked_fill(gone, float("nan"))


def scan(log_a, u):
    """h_t = exp(log_a) h_{t-1} + u_t, chunked so that the decay powers stay bounded."""
    h, out = torch.zeros_like(u[:, 0]), []
    for part in u.split(10, 1):
        n = part.size(1)
        k = torch.arange(n)
        lag = (k[:, None] - k[None]).clamp_min(0)
        w = (log_a[None, None] * lag[..., None]).exp() * (k[:, None] >= k[None])[..., None]
        y = torch.einsum("tsd,bsd->btd", w.to(part.dtype), part)
        y = y + (log_a[None] * (k[:, None] + 1)).exp()[None] * h[:, None]
        h = y[:, -1]
        out.append(y)
    return torch.cat(out, 1)


class SSM(nn.Module):
    def __init__(self, d, n=24):
        super().__init__()
        self.norm = nn.LayerNorm(d)
        self.b = nn.Linear(d, 2 * n)
        self.decay = nn.Parameter(torch.linspace(-5.0, -1.0, n))
        self.freq = nn.Parameter(torch.linspace(0.05, 1.5, n))
        self.c = nn.Linear(2 * n, d)
        self.gate = nn.Linear(d, d)

    def forward(self, x):
        z = self.norm(x)
        u = torch.complex(*self.b(z).chunk(2, -1))
        h = scan(torch.complex(-self.decay.exp(), self.freq), u)
        return x + self.c(torch.cat([h.real, h.imag], -1)) * torch.sigmoid(self.gate(z))


class Forecaster(nn.Module):
    def __init__(self, d=40):
        super().__init__()
        self.inp = nn.Linear(2 * CH, d)
        self.layers = nn.Sequential(SSM(d), SSM(d))
        self.out = nn.Linear(d, CH)

    def forward(self, y):
        m = ~y.isnan()
        return self.out(self.layers(self.inp(torch.cat([y.nan_to_num(0.0), m.float()], -1))))


def masked_mse(pred, y):
    m = ~y.isnan()
    return (torch.where(m, pred - y.nan_to_num(0.0), 0.0) ** 2).sum() / m.sum()


train, test = plant(3000), plant(500)
zero = masked_mse(torch.zeros_like(test[:, HOR:]), test[:, HOR:]).item()
filled = test.clone()
for t in range(1, T + HOR):
    filled[:, t] = torch.where(filled[:, t].isnan(), filled[:, t - 1], filled[:, t])
carry = masked_mse(filled.nan_to_num(0.0)[:, :-HOR], test[:, HOR:]).item()
print(f"missing {test.isnan().float().mean():.2f}; mse of zero {zero:.4f}, of last value {carry:.4f}")

model = Forecaster()
opt = torch.optim.AdamW(model.parameters(), lr=4e-3, weight_decay=1e-3)
STEPS = 180
for step in range(STEPS):
    y = train[torch.randint(0, len(train), (48,))]
    loss = masked_mse(model(y[:, :-HOR]), y[:, HOR:])
    opt.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    for g in opt.param_groups:
        g["lr"] = 4e-3 * min(1, (step + 1) / 20) * (1 - 0.9 * step / STEPS)
    opt.step()
    if step % 20 == 0 or step == STEPS - 1:
        with torch.no_grad():
            te = masked_mse(model(test[:, :-HOR]), test[:, HOR:]).item()
        print(f"step {step:3d} train {loss.item():.4f} test {te:.4f}")
