from dataclasses import dataclass

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset


@dataclass
class Config:
    digits: int = 10
    max_len: int = 16
    dim: int = 64
    heads: int = 4
    depth: int = 2
    epochs: int = 9
    per_epoch: int = 2048
    batch: int = 64
    lr: float = 2e-3
    workers: int = 2
    seed: int = 17


class SortDataset(Dataset):
    def __init__(self, cfg, size, seed):
        self.cfg, self.size, self.seed = cfg, size, seed
        self.max_len, self.epoch = 4, 0

    def set_epoch(self, epoch, max_len):
        self.epoch, self.max_len = epoch, max_len

    def __len__(self):
        return self.size

    def __getitem__(self, i):
        rng = np.random.default_rng((self.seed, self.epoch, i))
        n = int(rng.integers(max(2, self.max_len // 2), self.max_len + 1))
        x = rng.integers(0, self.cfg.digits, n)
        return torch.from_numpy(x), torch.from_numpy(np.sort(x))


class Collate:
    def __init__(self, pad, max_len):
        self.pad, self.max_len = pad, max_len

    def __call__(self, items):
        xs = torch.full((len(items), self.max_len), self.pad)
        ys = torch.full((len(items), self.max_len), -100)
        for j, (x, y) in enumerate(items):
            xs[j, : len(x)] = x
            ys[j, : len(y)] = y
        return xs, ys


class Sorter(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.pad = cfg.digits
        self.tok = nn.Embedding(cfg.digits + 1, cfg.dim)
        self.pos = nn.Parameter(0.05 * torch.randn(cfg.max_len, cfg.dim))
        layer = nn.TransformerEncoderLayer(cfg.dim, cfg.heads, 4 * cfg.dim, dropout=0.0, activation="gelu",
                                           batch_first=True, norm_first=True)
        self.enc = nn.TransformerEncoder(layer, cfg.depth, norm=nn.LayerNorm(cfg.dim), enable_nested_tensor=False)
        self.head = nn.Linear(cfg.dim, cfg.digits)

    def forward(self, x):
        h = self.tok(x) + self.pos
        return self.head(self.enc(h, src_key_padding_mask=x == self.pad))


@torch.no_grad()
def evaluate(model, loader):
    model.eval()
    ls = hit = n = 0
    for x, y in loader:
        out = model(x)
        m = y >= 0
        ls += F.cross_entropy(out[m], y[m], reduction="sum").item()
        hit += (out.argmax(-1)[m] == y[m]).sum().item()
        n += m.sum().item()
    model.train()
    return ls / n, hit / n


def main():
    cfg = Config()
    torch.manual_seed(cfg.seed)
    collate = Collate(cfg.digits, cfg.max_len)
    train_ds = SortDataset(cfg, cfg.per_epoch, seed=1)
    loader = DataLoader(train_ds, batch_size=cfg.batch, shuffle=True, collate_fn=collate,
                        num_workers=cfg.workers)
    val_ds = SortDataset(cfg, 512, seed=2)
    val_ds.set_epoch(0, cfg.max_len)
    val_loader = DataLoader(val_ds, batch_size=128, collate_fn=collate)

    model = Sorter(cfg)
    opt = torch.optim.AdamW(model.parameters(), lr=cfg.lr, weight_decay=0.01)
    total = cfg.epochs * len(loader)
    sched = torch.optim.lr_scheduler.OneCycleLR(opt, cfg.lr, total_steps=total, pct_start=0.1)
    step = 0
    for epoch in range(cfg.epochs):
        length = min(cfg.max_len, 4 + 3 * epoch)
        train_ds.set_epoch(epoch, length)
        for x, y in loader:
            loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten(), ignore_index=-100)
            opt.zero_grad(set_to_none=True)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            opt.step()
            sched.step()
            if step % 16 == 0:
                print(f"epoch {epoch} step {step:4d} loss {loss.item():.4f}")
            step += 1
        vl, va = evaluate(model, val_loader)
        print(f"epoch {epoch} val loss {vl:.4f} val digit acc {va:.3f}")


if __name__ == "__main__":
    main()
