import math

import torch
import torch.nn as nn


class SeriesBank:
    def __init__(self, series=400, length=300, seed=17):
        self.seed = seed
        g = torch.Generator().manual_seed(seed)
        t = torch.arange(length).float()
        period = 8 + 22 * torch.rand(series, 1, generator=g)
        period2 = 8 + 22 * torch.rand(series, 1, generator=g)
        shift = 2 * math.pi * torch.rand(series, 2, generator=g)
        noise = 0.1 * torch.randn(series, length, generator=g)
        self.values = torch.sin(2 * math.pi * t / period + shift[:, :1]) + 0.6 * torch.sin(2 * math.pi * t / period2 + shift[:, 1:]) + noise

    def windows(self, n, rows, context=48, horizon=8):
        g = torch.Generator().manual_seed(self.seed)
        r = torch.randint(rows[0], rows[1], (n,), generator=g)
        s = torch.randint(0, self.values.size(1) - context - horizon, (n,), generator=g)
        cols = s[:, None] + torch.arange(context + horizon)
        w = self.values[r[:, None], cols]
        return w[:, :context], w[:, context:]


class Forecaster(nn.Module):
    def __init__(self, d=48, horizon=8, patch=4):
        super().__init__()
        self.patch = patch
        self.proj = nn.Linear(patch, d)
        self.pos = nn.Parameter(0.1 * torch.randn(1, 12, d))
        layer = nn.TransformerEncoderLayer(d, 4, 128, dropout=0.0, batch_first=True, norm_first=True, activation="gelu")
        self.enc = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(12 * d, horizon)

    def forward(self, x):
        h = self.proj(x.unflatten(1, (-1, self.patch))) + self.pos
        return self.head(self.enc(h).flatten(1))


def run():
    torch.manual_seed(17)
    bank = SeriesBank()
    model = Forecaster()
    opt = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=1e-3)
    warm = torch.optim.lr_scheduler.LinearLR(opt, 0.1, 1.0, 15)
    for step in range(1, 261):
        model.train()
        x, y = bank.windows(48, (0, 360))
        loss = nn.functional.mse_loss(model(x), y)
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        warm.step()
        if step == 1 or step % 20 == 0:
            model.eval()
            with torch.no_grad():
                vx, vy = bank.windows(200, (360, 400))
                val = nn.functional.mse_loss(model(vx), vy)
            print(f"step {step:3d} train mse {loss.item():.4f} valid mse {val.item():.4f}")


run()
