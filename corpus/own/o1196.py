import math
import os
import tempfile
from dataclasses import dataclass, asdict
import numpy as np
import torch
import torch.nn as nn


@dataclass
class Config:
    context: int = 96
    horizon: int = 24
    patch: int = 8
    d_model: int = 64
    heads: int = 4
    layers: int = 3
    ff: int = 128
    dropout: float = 0.0
    batch: int = 64
    lr: float = 0.001
    steps: int = 600
    slice_steps: int = 120
    seed: int = 7


def make_series(n_series, length, rng):
    t = np.arange(length)
    out = np.empty((n_series, length), dtype=np.float32)
    for i in range(n_series):
        p1, p2 = (rng.uniform(8, 16), rng.uniform(20, 44))
        a1, a2 = rng.uniform(0.5, 1.5, size=2)
        daily = a1 * np.sin(2 * math.pi * t / p1 + rng.uniform(0, 6.3))
        weekly = a2 * (2 * ((t / p2 + rng.uniform()) % 1.0) - 1)
        out[i] = daily + weekly + 0.05 * rng.standard_normal(length) + rng.uniform(-3, 3)
    return torch.from_numpy(out)


class PatchTST(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.cfg = cfg
        n_patch = cfg.context // cfg.patch
        self.embed = nn.Linear(cfg.patch, cfg.d_model)
        self.pos = nn.Parameter(torch.randn(1, n_patch, cfg.d_model) * 0.02)
        layer = nn.TransformerEncoderLayer(
            cfg.d_model,
            cfg.heads,
            cfg.ff,
            dropout=cfg.dropout,
            activation="gelu",
            batch_first=True,
            norm_first=True,
        )
        self.encoder = nn.TransformerEncoder(layer, cfg.layers, enable_nested_tensor=False)
        self.norm = nn.LayerNorm(cfg.d_model)
        self.head = nn.Linear(n_patch * cfg.d_model, cfg.horizon)

    def forward(self, x):
        mean = x.mean(1, keepdim=True)
        std = x.std(1, keepdim=True) + 1e-05
        z = (x - mean) / std
        z = z.unfold(1, self.cfg.patch, self.cfg.patch)
        h = self.encoder(self.embed(z) + self.pos)
        y = self.head(self.norm(h).flatten(1))
        return y * std + mean


class Trainer:
    def __init__(self, cfg, series, val_series):
        self.cfg = cfg
        self.series, self.val_series = (series, val_series)
        self.model = PatchTST(cfg)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=cfg.lr, weight_decay=0.01)
        self.step = 0
        self.gen = torch.Generator().manual_seed(cfg.seed)

    def windows(self, series, n, gen):
        w = self.cfg.context + self.cfg.horizon
        rows = torch.randint(series.shape[0], (n,), generator=gen)
        starts = torch.randint(series.shape[1] - w, (n,), generator=gen)
        idx = starts[:, None] + torch.arange(w)
        chunk = series[rows[:, None], idx]
        return (chunk[:, : self.cfg.context], chunk[:, self.cfg.context :])

    def save(self, path):
        torch.save(
            {
                "cfg": asdict(self.cfg),
                "model": self.model.state_dict(),
                "optim": self.optimizer.state_dict(),
                "step": self.step,
            },
            path,
        )

    def load(self, path):
        ck = torch.load(path)
        self.cfg = Config(**ck["cfg"])
        self.model = PatchTST(self.cfg)
        self.model.load_state_dict(ck["model"])
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(), lr=self.cfg.lr, weight_decay=0.01
        )
        self.optimizer.load_state_dict(ck["optim"])
        self.step = ck["step"]

    def run_slice(self):
        self.model.train()
        last = min(self.step + self.cfg.slice_steps, self.cfg.steps)
        while self.step < last:
            x, y = self.windows(self.series, self.cfg.batch, self.gen)
            loss = nn.functional.mse_loss(self.model(x), y)
            self.optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.optimizer.step()
            self.step += 1
            if self.step % 30 == 0 or self.step == 1:
                print(f"step {self.step:4d}  train mse {loss.item():.4f}")

    @torch.no_grad()
    def evaluate(self):
        self.model.eval()
        x, y = self.windows(self.val_series, 1024, torch.Generator().manual_seed(99))
        mse = nn.functional.mse_loss(self.model(x), y).item()
        naive = (x.mean(1, keepdim=True) - y).pow(2).mean().item()
        return (mse, naive)


def main():
    cfg = Config()
    torch.manual_seed(cfg.seed)
    rng = np.random.default_rng(cfg.seed)
    train, val = (make_series(400, 600, rng), make_series(60, 600, rng))
    trainer = Trainer(cfg, train, val)
    path = os.path.join(tempfile.mkdtemp(), "last.pt")
    while trainer.step < cfg.steps:
        if os.path.exists(path):
            trainer.load(path)
        trainer.run_slice()
        trainer.save(path)
        mse, naive = trainer.evaluate()
        print(f"-- job done at step {trainer.step}: val mse {mse:.4f} (window mean {naive:.4f})")
    print(f"final val mse {mse:.4f}")


if __name__ == "__main__":
    main()
