import argparse
import math
import time

import numpy as np
import torch
import torch.nn as nn

QUANTILES = (0.1, 0.5, 0.9)


def load_curves(n_sites, hours, rng):
    t = np.arange(hours)
    day, week = 2 * np.pi * t / 24, 2 * np.pi * t / 168
    out = np.zeros((n_sites, hours), np.float32)
    for s in range(n_sites):
        a, b, ph = rng.uniform(0.5, 1.5), rng.uniform(0.1, 0.5), rng.uniform(0, 2 * np.pi)
        base = a * np.sin(day + ph) + 0.4 * a * np.sin(2 * day + 2 * ph) + b * np.sin(week + ph)
        weather = np.zeros(hours)
        for i in range(1, hours):
            weather[i] = 0.97 * weather[i - 1] + 0.08 * rng.standard_normal()
        sigma = 0.12 + 0.25 * (1 + np.sin(day + ph)) / 2
        out[s] = rng.uniform(3, 8) + base + weather + sigma * rng.standard_normal(hours)
    return torch.from_numpy(out)


class Windows(torch.utils.data.Dataset):
    def __init__(self, curves, lo, hi, ctx, hor, stride):
        self.curves, self.ctx, self.hor = curves, ctx, hor
        self.index = [(s, i) for s in range(len(curves)) for i in range(lo, hi - ctx - hor + 1, stride)]

    def __len__(self):
        return len(self.index)

    def __getitem__(self, k):
        s, i = self.index[k]
        w = self.curves[s, i:i + self.ctx + self.hor]
        return w[:self.ctx], w[self.ctx:]


class PatchForecaster(nn.Module):
    def __init__(self, ctx, hor, patch=12, dim=64, depth=2, heads=4):
        super().__init__()
        self.patch, self.hor = patch, hor
        n = ctx // patch
        self.embed = nn.Linear(patch, dim)
        self.pos = nn.Parameter(0.02 * torch.randn(1, n, dim))
        layer = nn.TransformerEncoderLayer(dim, heads, 2 * dim, dropout=0.0, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
        self.head = nn.Linear(n * dim, hor * len(QUANTILES))

    def forward(self, x):
        mu, sd = x.mean(1, keepdim=True), x.std(1, keepdim=True) + 1e-5
        z = ((x - mu) / sd).unfold(1, self.patch, self.patch)
        h = self.encoder(self.embed(z) + self.pos)
        q = self.head(h.flatten(1)).view(len(x), self.hor, len(QUANTILES))
        return q * sd.unsqueeze(-1) + mu.unsqueeze(-1)


class QuantileLoss(nn.Module):
    def __init__(self, quantiles):
        super().__init__()
        self.register_buffer("q", torch.tensor(quantiles))

    def forward(self, y_hat, y):
        delta_y = (y.unsqueeze(-1) - y_hat).abs()
        loss = torch.maximum(self.q * delta_y, (self.q - 1) * delta_y)
        return loss.mean()


@torch.no_grad()
def report(model, loader, crit):
    model.eval()
    losses, cov, width, mae, n = 0.0, 0.0, 0.0, 0.0, 0
    for x, y in loader:
        q = model(x)
        b = len(x)
        losses += crit(q, y).item() * b
        cov += ((y >= q[..., 0]) & (y <= q[..., 2])).float().mean().item() * b
        width += (q[..., 2] - q[..., 0]).mean().item() * b
        mae += (y - q[..., 1]).abs().mean().item() * b
        n += b
    model.train()
    print(f"  test: loss {losses / n:.4f}  mae(p50) {mae / n:.4f}  coverage(p10-p90) {cov / n:.3f}  width {width / n:.3f}")


def main(a):
    torch.manual_seed(a.seed)
    torch.set_num_threads(1)
    curves = load_curves(16, 24 * 90, np.random.default_rng(a.seed))
    ctx, hor = 168, 24
    split = 24 * 70
    train = torch.utils.data.DataLoader(Windows(curves, 0, split, ctx, hor, 5), batch_size=64, shuffle=True, drop_last=True)
    test = torch.utils.data.DataLoader(Windows(curves, split, 24 * 90, ctx, hor, 12), batch_size=128)
    model = PatchForecaster(ctx, hor)
    crit = QuantileLoss(QUANTILES)
    opt = torch.optim.AdamW(model.parameters(), lr=a.lr, weight_decay=1e-3)
    total = a.epochs * len(train)
    sched = torch.optim.lr_scheduler.OneCycleLR(opt, a.lr, total_steps=total)
    t0, step = time.time(), 0
    for ep in range(a.epochs):
        for x, y in train:
            loss = crit(model(x), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
            sched.step()
            step += 1
            if step % 40 == 0 or step == 1:
                print(f"epoch {ep} step {step}/{total} loss {loss.item():.4f} ({time.time() - t0:.1f}s)")
        report(model, test, crit)


if __name__ == "__main__":
    p = argparse.ArgumentParser()
    p.add_argument("--epochs", type=int, default=5)
    p.add_argument("--lr", type=float, default=2e-3)
    p.add_argument("--seed", type=int, default=4)
    main(p.parse_args())
