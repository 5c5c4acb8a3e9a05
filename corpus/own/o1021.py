import argparse
import math

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def synth(n, seed):
    r = np.random.default_rng(seed)
    t = np.arange(128) / 128.0
    y = r.integers(0, 5, n)
    base = np.array([4.0, 7.0, 11.0, 16.0, 22.0])
    f = base[y] * r.normal(1, 0.04, n)
    ph = r.uniform(0, 2 * math.pi, n)
    env = 1 + 0.8 * np.sin(2 * math.pi * 2 * t[None] + r.uniform(0, 6.28, (n, 1)))
    x = env * np.sin(2 * math.pi * f[:, None] * t[None] + ph[:, None])
    x = x * r.uniform(0.6, 1.4, (n, 1)) + r.normal(0, 0.9, (n, 128))
    return torch.tensor(x[:, None], dtype=torch.float32), torch.tensor(y)


class ConvBlock(nn.Module):
    def __init__(self, ci, co):
        super().__init__()
        self.dw = nn.Conv1d(ci, co, 9, stride=2, padding=4)
        self.norm = nn.GroupNorm(4, co)
        self.pw = nn.Conv1d(co, co, 1)

    def forward(self, x):
        h = torch.relu(self.norm(self.dw(x)))
        return h + torch.relu(self.pw(h))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(ConvBlock(1, 16), ConvBlock(16, 32), ConvBlock(32, 48))
        self.fc = nn.Linear(48, 5)

    def forward(self, x):
        return self.fc(self.body(x).mean(-1))


class AmpTrainer:
    def __init__(self, model, args):
        self.model, self.args = model, args
        self.opt = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9, weight_decay=1e-4)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=2.0 ** 14)
        self.crit = nn.CrossEntropyLoss()
        self.step = 0

    def train_epoch(self, loader, sched):
        self.model.train()
        for i, (x, y) in enumerate(loader):
            with torch.autocast("cpu", dtype=torch.float16):
                loss = self.crit(self.model(x).float(), y)
            self.scaler.scale(loss / self.args.accum).backward()
            if (i + 1) % self.args.accum:
                continue
            self.scaler.unscale_(self.opt)
            nn.utils.clip_grad_norm_(self.model.parameters(), self.args.clip)
            self.scaler.step(self.opt)
            self.scaler.update()
            self.opt.zero_grad(set_to_none=True)
            sched.step()
            if self.step % 15 == 0:
                print(f"step {self.step:4d} loss {loss.item():.4f} lr {sched.get_last_lr()[0]:.4f}")
            self.step += 1

    @torch.no_grad()
    def evaluate(self, loader):
        self.model.eval()
        hit = tot = 0
        ls = 0.0
        for x, y in loader:
            out = self.model(x)
            ls += self.crit(out, y).item() * len(y)
            hit += (out.argmax(1) == y).sum().item()
            tot += len(y)
        return ls / tot, hit / tot


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--lr", type=float, default=0.05)
    ap.add_argument("--accum", type=int, default=2)
    ap.add_argument("--clip", type=float, default=1.0)
    ap.add_argument("--epochs", type=int, default=6)
    args = ap.parse_args()
    torch.manual_seed(0)
    train = DataLoader(TensorDataset(*synth(1536, 1)), batch_size=32, shuffle=True, drop_last=True)
    test = DataLoader(TensorDataset(*synth(512, 2)), batch_size=128)
    tr = AmpTrainer(Net(), args)
    total = args.epochs * len(train) // args.accum
    sched = torch.optim.lr_scheduler.OneCycleLR(tr.opt, max_lr=args.lr, total_steps=total + 1, pct_start=0.15)
    for ep in range(args.epochs):
        tr.train_epoch(train, sched)
        l, a = tr.evaluate(test)
        print(f"== epoch {ep} test loss {l:.4f} acc {a:.3f}")


if __name__ == "__main__":
    main()
