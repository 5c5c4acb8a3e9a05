import importlib
import inspect
import random

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, IterableDataset

MODULES = ["argparse", "tarfile", "pydoc", "difflib", "calendar", "zipfile"]
PIECE = 32


class Corpus(IterableDataset):
    def __init__(self, shards, buffer_size=1):
        self.shards = shards
        self.buffer_size = buffer_size

    def raw(self):
        for label, rows in enumerate(self.shards):
            for r in rows:
                yield r, label

    def __iter__(self):
        buffer = []
        for item in self.raw():
            buffer.append(item)
            if len(buffer) >= self.buffer_size:
                yield buffer.pop(random.randrange(len(buffer)))
        random.shuffle(buffer)
        yield from buffer


def shard(name, n, test):
    text = inspect.getsource(importlib.import_module(name))
    rng = random.Random(name)
    half = int(len(text) * 0.8)
    area = text[half:] if test else text[:half]
    out = []
    for _ in range(n):
        a = rng.randrange(len(area) - PIECE)
        out.append(torch.tensor([min(ord(c), 127) for c in area[a:a + PIECE]]))
    return out


class TextCNNFormer(nn.Module):
    def __init__(self, d=64):
        super().__init__()
        self.emb = nn.Embedding(128, d)
        self.conv = nn.Conv1d(d, d, 5, padding=2)
        self.att = nn.TransformerEncoderLayer(d, 4, 128, dropout=0.0, batch_first=True, norm_first=True)
        self.cls = nn.Linear(2 * d, len(MODULES))

    def forward(self, x):
        h = F.relu(self.conv(self.emb(x).transpose(1, 2))).transpose(1, 2)
        h = self.att(h)
        return self.cls(torch.cat([h.mean(1), h.amax(1)], -1))


def accuracy(model, rows):
    model.eval()
    with torch.no_grad():
        hits = [(model(torch.stack(r)).argmax(-1) == k).float().mean().item() for k, r in enumerate(rows)]
    model.train()
    return sum(hits) / len(hits)


def main():
    random.seed(73)
    torch.manual_seed(73)
    train = [shard(m, 1000, False) for m in MODULES]
    test = [shard(m, 60, True) for m in MODULES]
    loader = DataLoader(Corpus(train), batch_size=32, num_workers=0)
    model = TextCNNFormer()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for epoch in range(1):
        for i, (x, y) in enumerate(loader):
            loss = F.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if i % 10 == 0:
                print(f"epoch {epoch} batch {i} loss {loss.item():.4f}")
            if i % 60 == 59:
                print(f"epoch {epoch} batch {i} test accuracy {accuracy(model, test):.3f}")
    print(f"done loss {loss.item():.4f} test accuracy {accuracy(model, test):.3f}")


if __name__ == "__main__":
    main()
