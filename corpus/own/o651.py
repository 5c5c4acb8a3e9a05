from dataclasses import dataclass, field

import torch
import torch.nn as nn
import torch.nn.functional as F


@dataclass
class ModelCfg:
    n_num: int = 6
    n_cat: int = 3
    card: int = 8
    dim: int = 32
    heads: int = 4
    depth: int = 1


@dataclass
class TrainCfg:
    model: ModelCfg = field(default_factory=ModelCfg)
    micro_batch: int = 8
    accumulate: int = 6
    updates: int = 125
    lr: float = 0.005
    momentum: float = 0.9
    seed: int = 31


class Engine:
    def __init__(self, accumulate):
        self.accumulate = accumulate
        self.calls = 0

    @property
    def sync(self):
        return self.calls % self.accumulate == 0

    def backward(self, loss):
        (loss / self.accumulate).backward()
        self.calls += 1


class FTTransformer(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.w = nn.Parameter(torch.randn(c.n_num, c.dim) * 0.5)
        self.b = nn.Parameter(torch.randn(c.n_num, c.dim) * 0.5)
        self.cat = nn.ModuleList(nn.Embedding(c.card, c.dim) for _ in range(c.n_cat))
        self.cls = nn.Parameter(torch.randn(1, 1, c.dim) * 0.5)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(c.dim, c.heads, 2 * c.dim, 0.0, "gelu", batch_first=True, norm_first=True)
            for _ in range(c.depth)
        )
        self.head = nn.Sequential(nn.LayerNorm(c.dim), nn.Linear(c.dim, 1))

    def forward(self, num, cat):
        t = num[..., None] * self.w + self.b
        e = torch.stack([m(cat[:, i]) for i, m in enumerate(self.cat)], 1)
        h = torch.cat([self.cls.expand(len(num), -1, -1), t, e], 1)
        for blk in self.blocks:
            h = blk(h)
        return self.head(h[:, 0])[:, 0]


def make_table(c, n, g, eff):
    num = torch.randn(n, c.n_num, generator=g)
    cat = torch.randint(0, c.card, (n, c.n_cat), generator=g)
    y = num[:, 0] - 0.7 * num[:, 1] + num[:, 2] * num[:, 3] * 0.5
    y = y + eff[0][cat[:, 0]] + eff[1][cat[:, 1]]
    y = (y - y.mean()) / y.std()
    return num, cat, y + 0.1 * torch.randn(n, generator=g)


def train(cfg):
    torch.manual_seed(cfg.seed)
    g = torch.Generator().manual_seed(cfg.seed + 1)
    eff = torch.randn(2, cfg.model.card, generator=g)
    tr = make_table(cfg.model, 8192, g, eff)
    va = make_table(cfg.model, 384, g, eff)
    model = FTTransformer(cfg.model)
    opt = torch.optim.SGD(model.parameters(), lr=cfg.lr, momentum=cfg.momentum, nesterov=True)
    engine = Engine(cfg.accumulate)
    update, running = 0, 0.0
    while update < cfg.updates:
        idx = torch.randint(0, len(tr[2]), (cfg.micro_batch,), generator=g)
        num, cat, y = (t[idx] for t in tr)
        loss = F.mse_loss(model(num, cat), y) / cfg.accumulate
        engine.backward(loss)
        running += loss.item()
        if engine.sync:
            nn.utils.clip_grad_norm_(model.parameters(), 5.0)
            opt.step()
            opt.zero_grad()
            if update % 10 == 0 or update == cfg.updates - 1:
                with torch.no_grad():
                    v = F.mse_loss(model(va[0], va[1]), va[2]).item()
                print(f"update {update:4d} train {running:.4f} valid {v:.4f}")
            running = 0.0
            update += 1


if __name__ == "__main__":
    train(TrainCfg())
