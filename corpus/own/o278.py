import math
import torch
from torch import nn


class SensorWindows:
    def __init__(self, series=40, length=2000, context=64, horizon=16, seed=7):
        g = torch.Generator().manual_seed(seed)
        t = torch.arange(length).float()
        period = torch.randint(12, 40, (series, 1), generator=g).float()
        phase = torch.rand(series, 1, generator=g) * 6.28
        amp = 0.5 + torch.rand(series, 1, generator=g)
        self.values = amp * torch.sin(6.2832 * t / period + phase) + 0.1 * torch.randn(series, length, generator=g)
        self.seen = torch.ones(series, length, dtype=torch.bool)
        for s in range(series):
            for _ in range(3):
                a = int(torch.randint(length, (1,), generator=g))
                self.seen[s, a:a + int(torch.randint(4, 20, (1,), generator=g))] = False
        self.g, self.context, self.horizon = g, context, horizon

    def sample(self, n):
        c, h = self.context, self.horizon
        s = torch.randint(self.values.size(0), (n,), generator=self.g)
        a = torch.randint(self.values.size(1) - c - h, (n,), generator=self.g)
        at = a[:, None] + torch.arange(c + h)
        v, m = self.values[s[:, None], at], self.seen[s[:, None], at]
        v = torch.where(m, v, torch.zeros(()))
        return torch.stack((v[:, :c], m[:, :c].float()), -1), v[:, c:], m[:, c:]


class PatchForecaster(nn.Module):
    def __init__(self, context, horizon, patch=8, d=64):
        super().__init__()
        self.patch = patch
        self.inp = nn.Linear(patch * 2, d)
        self.where = nn.Parameter(torch.randn(context // patch, d) * 0.02)
        layer = nn.TransformerEncoderLayer(d, 4, 2 * d, dropout=0.0, batch_first=True, norm_first=True)
        self.body = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(d * (context // patch), horizon)

    def forward(self, x):
        b, c, f = x.shape
        h = self.inp(x.reshape(b, c // self.patch, self.patch * f)) + self.where
        return self.head(self.body(h).flatten(1))


def series_rmse(pred, target, mask):
    count = mask.sum(1).clamp(min=1)
    err = ((pred - target) ** 2 * mask).sum(1) / count
    return torch.sqrt(err).mean()


def fit(steps=160, lr=1e-3):
    torch.manual_seed(7)
    data = SensorWindows()
    net = PatchForecaster(data.context, data.horizon)
    opt = torch.optim.AdamW(net.parameters(), lr=lr, weight_decay=0.01)
    sched = torch.optim.lr_scheduler.LambdaLR(opt, lambda i: min(1, (i + 1) / 20) * (0.55 + 0.45 * math.cos(math.pi * i / steps)))
    for step in range(steps):
        x, y, m = data.sample(48)
        loss = series_rmse(net(x), y, m)
        opt.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        opt.step()
        sched.step()
        if step % 20 == 0 or step == steps - 1:
            print(f"step {step:3d} rmse loss {loss.item():.4f} observed {m.float().mean():.3f}")


if __name__ == "__main__":
    fit()
