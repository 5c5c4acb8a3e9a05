import argparse
import numpy as np
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset


def recording(subject, stage, n, rng):
    fs, sec = 32, 4
    t = np.arange(fs * sec) / fs
    bands = [10.0, 6.0, 13.0, 2.0]
    amps = [1.0, 0.9, 0.8, 1.6]
    out = np.zeros((n, 2, fs * sec), dtype=np.float32)
    gain = 1.0 + 0.1 * subject
    for i in range(n):
        for c in range(2):
            f = bands[stage] + rng.normal(0, 0.4)
            sig = amps[stage] * np.sin(2 * np.pi * f * t + rng.uniform(0, 6.28))
            out[i, c] = gain * (sig + rng.normal(0, 1.0, len(t)))
    return out


class SleepStager(nn.Module):
    def __init__(self, d=32, classes=4):
        super().__init__()
        self.cnn = nn.Sequential(
            nn.Conv1d(2, d, 9, stride=2, padding=4), nn.BatchNorm1d(d), nn.ReLU(),
            nn.Conv1d(d, d, 7, stride=4, padding=3), nn.BatchNorm1d(d), nn.ReLU())
        self.attn = nn.MultiheadAttention(d, 4, batch_first=True)
        self.norm = nn.LayerNorm(d)
        self.head = nn.Sequential(nn.Linear(d, d), nn.BatchNorm1d(d), nn.ReLU(), nn.Linear(d, classes))

    def forward(self, x):
        h = self.cnn(x).transpose(1, 2)
        h = self.norm(h + self.attn(h, h, h, need_weights=False)[0])
        return self.head(h.mean(1))


class Trainer:
    def __init__(self, model, args):
        self.model = model
        self.opt = torch.optim.Adam(model.parameters(), lr=args.lr)
        self.crit = nn.CrossEntropyLoss()
        self.args = args

    def fit(self, train_dl, test_records):
        for ep in range(1, self.args.epochs + 1):
            self.model.train()
            n = hit = 0
            tot = 0.0
            for x, y in train_dl:
                self.opt.zero_grad()
                out = self.model(x)
                loss = self.crit(out, y)
                loss.backward()
                self.opt.step()
                tot += loss.item() * len(y)
                hit += (out.argmax(1) == y).sum().item()
                n += len(y)
            acc, vloss = self.evaluate(test_records)
            print(f"Epoch {ep}: train loss {tot / n:.4f} acc {hit / n:.4f} | test loss {vloss:.4f} acc {acc:.4f}")
        return acc

    def evaluate(self, records):
        self.model.eval()
        hit = n = 0
        loss = 0.0
        with torch.no_grad():
            for x, y in records:
                out = self.model(x)
                loss += self.crit(out, y).item() * len(y)
                hit += (out.argmax(1) == y).sum().item()
                n += len(y)
        return hit / n, loss / n


if __name__ == "__main__":
    p = argparse.ArgumentParser()
    p.add_argument("--epochs", type=int, default=8)
    p.add_argument("--lr", type=float, default=1e-3)
    p.add_argument("--batch-size", type=int, default=48)
    args = p.parse_args()
    torch.manual_seed(21)
    rng = np.random.default_rng(21)
    xs, ys = [], []
    for subject in range(8):
        for stage in range(4):
            xs.append(recording(subject, stage, 50, rng))
            ys += [stage] * 50
    ds = TensorDataset(torch.tensor(np.concatenate(xs)), torch.tensor(ys))
    train_dl = DataLoader(ds, batch_size=args.batch_size, shuffle=True, drop_last=True)
    test_records = []
    for subject in range(3, 6):
        for stage in rng.permutation(4):
            test_records.append((torch.tensor(recording(subject + 0.5, stage, 40, rng)),
                                 torch.full((40,), int(stage))))
    acc = Trainer(SleepStager(), args).fit(train_dl, test_records)
    print(f"test accuracy on held-out nights: {acc:.4f}")
