import numpy as np
import torch
from torch import nn

LOOKBACK, HORIZON, PATCH = 64, 16, 8


def make_series(n, rng):
    t = np.arange(LOOKBACK + HORIZON)
    out = []
    for _ in range(n):
        s = np.zeros_like(t, dtype=float)
        for _ in range(2):
            s += rng.uniform(0.4, 1.2) * np.sin(2 * np.pi * t / rng.uniform(9, 30) + rng.uniform(0, 6.28))
        out.append(s + 0.01 * rng.uniform(-1, 1) * t + 0.05 * rng.standard_normal(len(t)))
    return torch.tensor(np.array(out), dtype=torch.float32)


class Forecaster(nn.Module):
    def __init__(self, d=64, heads=4, layers=2):
        super().__init__()
        n = LOOKBACK // PATCH
        self.embed = nn.Linear(PATCH, d)
        self.pos = nn.Parameter(torch.zeros(n, d).normal_(0, 0.02))
        self.blocks = nn.ModuleList([
            nn.TransformerEncoderLayer(d, heads, 2 * d, 0.0, "gelu", batch_first=True, norm_first=True)
            for _ in range(layers)])
        self.head = nn.Linear(n * d, HORIZON)

    def forward(self, x):
        mu, sd = x.mean(1, keepdim=True), x.std(1, keepdim=True) + 1e-4
        z = ((x - mu) / sd).unfold(1, PATCH, PATCH)
        h = self.embed(z) + self.pos
        for b in self.blocks:
            h = b(h)
        return self.head(h.flatten(1)) * sd + mu


class Experiment:
    base_lr, decay = 2e-3, 0.8

    def __init__(self, seed=31, batch=64):
        torch.manual_seed(seed)
        rng = np.random.default_rng(seed)
        self.train, self.val = make_series(2560, rng), make_series(512, rng)
        self.model = Forecaster()
        self.opt = torch.optim.AdamW(self.model.parameters(), lr=self.base_lr, weight_decay=1e-3)
        self.batch, self.epoch, self.iteration = batch, 0, 0

    def adjust_lr(self):
        lr = self.base_lr * self.decay ** self.epoch
        for group in self.opt.param_groups:
            group["lr"] = lr

    def run_epoch(self):
        for idx in torch.randperm(len(self.train)).split(self.batch):
            self.adjust_lr()
            w = self.train[idx]
            pred = self.model(w[:, :LOOKBACK])
            loss = nn.functional.mse_loss(pred, w[:, LOOKBACK:])
            self.opt.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.opt.step()
            if self.iteration % 20 == 0:
                print(f"epoch {self.epoch} iter {self.iteration} mse {loss.item():.4f}", flush=True)
            self.iteration += 1
        self.epoch += 1

    @torch.no_grad()
    def validate(self):
        pred = self.model(self.val[:, :LOOKBACK])
        return nn.functional.mse_loss(pred, self.val[:, LOOKBACK:]).item()


exp = Experiment()
for _ in range(8):
    exp.run_epoch()
    print(f"-- val mse {exp.validate():.4f}", flush=True)
