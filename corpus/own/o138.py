from dataclasses import dataclass

import torch
import torch.nn as nn
from torch.utils.data import ConcatDataset, DataLoader, TensorDataset

torch.set_num_threads(1)


@dataclass
class Config:
    sites: int = 5
    rows_per_site: int = 640
    seq: int = 12
    feat: int = 10
    width: int = 48
    depth: int = 2
    heads: int = 4
    batch: int = 32
    epochs: int = 2
    lr: float = 2e-3
    seed: int = 2024


class SiteFactory:
    def __init__(self, cfg):
        self.cfg = cfg
        self.gen = torch.Generator().manual_seed(cfg.seed)
        self.centres = torch.randn(cfg.sites, cfg.feat, generator=self.gen)
        self.maps = torch.randn(cfg.sites, cfg.feat, generator=self.gen)
        self.bias = torch.linspace(-4, 4, cfg.sites)

    def build(self, site, rows):
        c = self.cfg
        x = torch.randn(rows, c.seq, c.feat, generator=self.gen) * 0.6 + self.centres[site]
        y = ((x - self.centres[site]) @ self.maps[site]).mean(1) * 2 + self.bias[site]
        return TensorDataset(x, y)


class SeriesRegressor(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.inp = nn.Linear(c.feat, c.width)
        self.pos = nn.Parameter(torch.zeros(c.seq, c.width))
        block = nn.TransformerEncoderLayer(c.width, c.heads, 3 * c.width, dropout=0.0, activation="gelu",
                                           batch_first=True, norm_first=True)
        self.enc = nn.TransformerEncoder(block, c.depth, norm=nn.LayerNorm(c.width), enable_nested_tensor=False)
        self.out = nn.Linear(c.width, 1)

    def forward(self, x):
        return self.out(self.enc(self.inp(x) + self.pos).mean(1)).squeeze(-1)


class Trainer:
    def __init__(self, cfg):
        torch.manual_seed(cfg.seed)
        self.cfg = cfg
        factory = SiteFactory(cfg)
        self.train_set = ConcatDataset([factory.build(s, cfg.rows_per_site) for s in range(cfg.sites)])
        self.test_set = ConcatDataset([factory.build(s, 60) for s in range(cfg.sites)])
        self.loader = DataLoader(self.train_set, batch_size=cfg.batch, num_workers=0, drop_last=True)
        self.model = SeriesRegressor(cfg)
        self.opt = torch.optim.AdamW(self.model.parameters(), lr=cfg.lr, weight_decay=1e-2)
        self.crit = nn.MSELoss()

    def evaluate(self):
        self.model.eval()
        with torch.no_grad():
            errs = [self.crit(self.model(x), y).item() for x, y in DataLoader(self.test_set, batch_size=60)]
        self.model.train()
        return sum(errs) / len(errs), errs

    def fit(self):
        step = 0
        for epoch in range(self.cfg.epochs):
            for x, y in self.loader:
                loss = self.crit(self.model(x), y)
                self.opt.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(self.model.parameters(), 5.0)
                self.opt.step()
                if step % 10 == 0:
                    print(f"epoch {epoch} step {step} loss {loss.item():.4f}")
                step += 1
            total, per = self.evaluate()
            print(f"epoch {epoch} test loss {total:.4f} by site {[round(e, 2) for e in per]}")


if __name__ == "__main__":
    Trainer(Config()).fit()
